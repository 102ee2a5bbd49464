"""Statuses and types of `_native`, for type checkers alone: at run time they are in `_native` itself."""

from typing import Final

# Every status that the core gives (native/src/base/status.h); shardd/protocol/errors.py has what they mean.
STATUS_OK: Final[int]
STATUS_ERROR: Final[int]
STATUS_INVALID_COMMAND: Final[int]
STATUS_INVALID_FORMAT: Final[int]
STATUS_FEATURE_UNAVAILABLE: Final[int]
STATUS_INVALID_IDENTIFIER: Final[int]
STATUS_DISCONNECTED: Final[int]
STATUS_STALE_CLIENT: Final[int]
STATUS_UNAUTHENTICATED: Final[int]
STATUS_UNAUTHORIZED: Final[int]
STATUS_REQUEST_ALREADY_APPLIED: Final[int]
STATUS_TOPIC_ID_NOT_FOUND: Final[int]
STATUS_TOO_MANY_PARTITIONS: Final[int]
STATUS_PARTITION_NOT_FOUND: Final[int]
STATUS_TOPIC_FULL: Final[int]
STATUS_CANNOT_DELETE_CONSUMER_OFFSET_FILE: Final[int]
STATUS_CONSUMER_OFFSET_NOT_FOUND: Final[int]
STATUS_NOT_RESOLVED_CONSUMER: Final[int]
STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE: Final[int]
STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT: Final[int]
STATUS_INVALID_MESSAGES_COUNT: Final[int]
STATUS_CANNOT_APPEND_MESSAGE: Final[int]
STATUS_TOO_BIG_USER_HEADERS: Final[int]
STATUS_TOO_BIG_MESSAGE_PAYLOAD: Final[int]
STATUS_INVALID_MESSAGE_CHECKSUM: Final[int]
STATUS_NON_ZERO_OFFSET: Final[int]
STATUS_NON_ZERO_TIMESTAMP: Final[int]
STATUS_MISSING_INDEX: Final[int]
STATUS_INVALID_MESSAGES_SIZE: Final[int]
STATUS_INVALID_BATCH_CHECKSUM: Final[int]
STATUS_INVALID_OFFSET: Final[int]
STATUS_INVALID_RESERVED_FIELD: Final[int]
STATUS_UNEXPECTED_OFFSET: Final[int]
STATUS_CONSUMER_NAME_TAKEN: Final[int]
STATUS_CONSUMER_GROUP_PARTITION_NOT_OWNED: Final[int]
STATUS_CANNOT_READ_FILE: Final[int]
STATUS_CANNOT_WRITE_TO_FILE: Final[int]
STATUS_CANNOT_DELETE_FILE: Final[int]
STATUS_CANNOT_SYNC_FILE: Final[int]
STATUS_CANNOT_READ_INDEX_POSITION: Final[int]
STATUS_SHARD_COMMUNICATION_ERROR: Final[int]
STATUS_TASK_TIMEOUT: Final[int]
STATUS_INVALID_SESSION: Final[int]

# Struct sequences (native/binding/results.c): tuples with names, made of one iterable of all their fields.
class StatsSums(tuple[int, int, int, int, int, int]):
    """Over partitions. `appended`: where they end; `not_durable`: messages that the device may not have yet;
    `read_only`: partitions that take no sends."""

    segments_count: Final[int]
    size_bytes: Final[int]
    messages_count: Final[int]
    appended: Final[int]
    not_durable: Final[int]
    read_only: Final[int]

class GroupLag(tuple[int, int, int, int]):
    """Over partitions that are open here; `without_offset`: in so many of them nothing is stored, all of their messages
    count. `since_us`: when the oldest message was taken that the group has not passed, 0: there is none."""

    partitions: Final[int]
    without_offset: Final[int]
    messages: Final[int]
    since_us: Final[int]

class Sample(tuple[int, int, int, int, int, int, int, int, bytes]):
    """A request that the engine answered alone. `length`: of its payload, which starts with `begin`. `began_us`:
    monotonic."""

    code: Final[int]
    dialect: Final[int]
    user_id: Final[int]
    connection: Final[int]
    status: Final[int]
    length: Final[int]
    began_us: Final[int]
    took_us: Final[int]
    begin: Final[bytes]

class Turn(tuple[bool, list[tuple[object, ...]], int]):
    """What a turn of the engine brought. `longest_us`: CPU time of its longest pass, 0 below 1 ms."""

    ready: Final[bool]
    events: Final[list[tuple[object, ...]]]
    longest_us: Final[int]

class StatsSlot(tuple[int, int, int, int, int, int, int, int, int]):
    """A slot of the shared statistics, as in native/src/base/shared.h."""

    incarnation: Final[int]
    next_offset: Final[int]
    size_bytes: Final[int]
    messages_count: Final[int]
    segments_count: Final[int]
    durable_offset: Final[int]
    first_offset: Final[int]
    state: Final[int]
    unseen: Final[int]

class SegmentInfo(tuple[int, int, int, int, int, int, int, int]):
    """segment_info of native/src/log/partition.h."""

    start_offset: Final[int]
    log_bytes: Final[int]
    records: Final[int]
    first_timestamp: Final[int]
    last_timestamp: Final[int]
    absent: Final[int]
    layout: Final[int]
    counted_us: Final[int]

class WithheldRange(tuple[int, int, bool]):
    """Offsets `start` to `end` (exclusive) that are not given out. `isolated`: the operator has said so."""

    start: Final[int]
    end: Final[int]
    isolated: Final[bool]

class RecoveredPartition(tuple[list[SegmentInfo], list[int], list[int], int, int, int]):
    """`segments` for partition_open. `groups`: numbers of those that have a stored offset. `unsealed`: start offsets
    of segments to be sealed."""

    segments: Final[list[SegmentInfo]]
    groups: Final[list[int]]
    unsealed: Final[list[int]]
    scanned_bytes: Final[int]
    durable_end: Final[int]
    log_start: Final[int]

class DeletedSegments(tuple[int, int, bool]):
    """`busy`: an answer that is being sent kept a further one."""

    status: Final[int]
    deleted: Final[int]
    busy: Final[bool]

class Cleaned(tuple[int, int, bool, bool, int, bool, bool]):
    """`removed`: segments whose files are gone now. `pending`: more waits for a sync, a second, a reader or the next
    step. `held`: stored offsets hold messages back. `leased_bytes`: of segments whose files a lease alone keeps.
    `overtaken`: messages are gone that a stored offset has not passed. `ahead`: its last times are ahead of the
    believed clock."""

    status: Final[int]
    removed: Final[int]
    pending: Final[bool]
    held: Final[bool]
    leased_bytes: Final[int]
    overtaken: Final[bool]
    ahead: Final[bool]

class OldestSegment(tuple[int, int, bool, bool, bool]):
    """The timestamp of its first message and its bytes that are served. `only_active`: there is no other one. `waits`:
    it holds what was acknowledged within the last second."""

    first_timestamp: Final[int]
    bytes: Final[int]
    droppable: Final[bool]
    only_active: Final[bool]
    waits: Final[bool]

class StoredOffset(tuple[int, int, int]):
    """`kind`: OFFSET_CONSUMER or OFFSET_GROUP."""

    kind: Final[int]
    consumer: Final[int]
    value: Final[int]

class UnusedOffset(tuple[int, int, int, int, int, int]):
    """`owner`, `name`: as in docs/formats.md#consumer-offsets."""

    kind: Final[int]
    consumer: Final[int]
    value: Final[int]
    used_us: Final[int]
    owner: Final[int]
    name: Final[int]

class UnusedPage(tuple[int, int, list[UnusedOffset]]):
    """`next`: the place to go on from; 0: that was all."""

    status: Final[int]
    next: Final[int]
    offsets: Final[list[UnusedOffset]]

class ExpiryClock(tuple[int, int, int, int, int, int, bytes, int, int]):
    """`jump_us`: how far the wall clock is ahead of what is believed of it. `jumps`: that were not believed at once.
    `since_boot_us`: when all that was so. The others as in shardd/maintenance/clock_memory.py; `doubts_ended`: how many
    there have been."""

    now_us: Final[int]
    stamp_us: Final[int]
    jump_us: Final[int]
    jumps: Final[int]
    believed_doubted_us: Final[int]
    stamps_doubted_us: Final[int]
    doubts: Final[bytes]
    doubts_ended: Final[int]
    since_boot_us: Final[int]

class Scan(tuple[int, int, int, int, int, int]):
    """record_scan of native/src/log/record.h."""

    valid_bytes: Final[int]
    records: Final[int]
    next_offset: Final[int]
    first_timestamp: Final[int]
    last_timestamp: Final[int]
    fault: Final[int]

class IndexedScan(tuple[int, int, int, int, int, int, bytes]):
    """The same, and what the index has for the records."""

    valid_bytes: Final[int]
    records: Final[int]
    next_offset: Final[int]
    first_timestamp: Final[int]
    last_timestamp: Final[int]
    fault: Final[int]
    entries: Final[bytes]

class FoundRecord(tuple[int, int]):
    """A valid record. Position 2^64-1: given up, there may be one (payloads that look like many long records)."""

    position: Final[int]
    offset: Final[int]

class SendRequest(tuple[bytes, bytes, int, int, bytes, int, int]):
    """What SEND_MESSAGES says. `messages_position`: where they begin in the payload."""

    stream: Final[bytes]
    topic: Final[bytes]
    partitioning: Final[int]
    partition_id: Final[int]
    key: Final[bytes]
    messages_count: Final[int]
    messages_position: Final[int]

class SentBatch(tuple[int, int, bytes]):
    """What earlier clients send, as `batch_check` takes it; empty with a status."""

    status: Final[int]
    messages_count: Final[int]
    batch: Final[bytes]

class SeatPartition(tuple[int, int, int]):
    """Offsets that a member has polled and committed, -1 for nothing."""

    partition: Final[int]
    polled: Final[int]
    committed: Final[int]

class SeatState(tuple[int, int, int, bool, list[SeatPartition]]):
    """A membership that was lent. `busy`: partition of the request under way, -1 for none, and whether that commits;
    GroupPolledEvent comes with its end. `partitions`: those that have been polled."""

    rotation: Final[int]
    last_polled: Final[int]
    busy: Final[int]
    auto_commit: Final[bool]
    partitions: Final[list[SeatPartition]]

# Events: what Engine.turn() returns.
class AcceptedEvent(tuple[int, str, int]):
    """`address`: "ip:port" or "unix:uid:number". `transport`: as GET_CLIENTS tells it."""

    connection: Final[int]
    address: Final[str]
    transport: Final[int]

class ClosedEvent(tuple[int, bytes]):
    """The connection is gone. `memory`: what its session remembers (`Engine.session_memory`)."""

    connection: Final[int]
    memory: Final[bytes]

class RequestEvent(tuple[int, int, bytes, int, bool, int]):
    """A request that Python answers. `dialect`: DIALECT_..."""

    connection: Final[int]
    code: Final[int]
    payload: Final[bytes]
    user_id: Final[int]
    authenticated: Final[bool]
    dialect: Final[int]

class RouteMissEvent(tuple[int, int, bytes, bytes, int, int]):
    """A request whose topic (raw identifiers) has no route."""

    connection: Final[int]
    code: Final[int]
    stream: Final[bytes]
    topic: Final[bytes]
    user_id: Final[int]
    attempt: Final[int]

class MoveEvent(tuple[int, int]):
    """The engine asks for the session state of a connection that moves."""

    connection: Final[int]
    target_shard: Final[int]

class MovedInEvent(tuple[int, str, bytes, int, bool]):
    """A connection came from another shard."""

    connection: Final[int]
    address: Final[str]
    session_state: Final[bytes]
    user_id: Final[int]
    authenticated: Final[bool]

class DoubtEvent(tuple[int, int]):
    """Log and index of the segment that starts there contradict."""

    namespace: Final[int]
    segment: Final[int]

class PoisonedEvent(tuple[int, int]):
    """The partition is read only."""

    namespace: Final[int]
    errno: Final[int]

class GroupPolledEvent(tuple[int, int, int, bool]):
    """The end of execute_poll, or of the request under way at seat_take. `messages_count` 0: none;
    `stored`: a commit of `offset`, else the last offset polled."""

    connection: Final[int]
    messages_count: Final[int]
    offset: Final[int]
    stored: Final[bool]

class CallEvent(tuple[int, int, int, int, int, int, int, bytes]):
    """How a call of Python ended (`outcome`: CALL_...), or goes on; the figures are those of the whole answer of a
    read. Of an append: the offset of its first message, how many were stored, the timestamp of the first one."""

    token: Final[int]
    outcome: Final[int]
    status: Final[int]
    current_offset: Final[int]
    messages_count: Final[int]
    timestamp_us: Final[int]
    total_bytes: Final[int]
    records: Final[bytes]

class RoomEvent(tuple[bool, int, int]):
    """Sends are refused for want of room, bytes or inodes, or no more."""

    refused: Final[bool]
    free_bytes: Final[int]
    free_inodes: Final[int]

class SyncedEvent(tuple[int, int]):
    """partition_sync has ended."""

    token: Final[int]
    status: Final[int]

class CertifiedEvent(tuple[int, str]):
    """A client has shown a certificate that is trusted; its connection waits for Engine.resume."""

    connection: Final[int]
    names: Final[str]

class RolledEvent(tuple[int, int]):
    """The segment that starts there is sealed."""

    namespace: Final[int]
    start_offset: Final[int]

class ResumedEvent(tuple[int]):
    """A partition has got messages in another way than by Liftbridge, for the first time since it was paused."""

    namespace: Final[int]
