"""Contract of the native engine (native/binding/module.c). One `Engine` per worker, used by its loop thread only."""

from array import array
from typing import Final

from shardd.engine._native_types import *
from shardd.engine.partition_limits import IdWindow, PartitionLimits, SendingPartition, SendLimits

# Outcomes of a call (native/src/engine/calls.h), and how many there are at a time.
CALL_STATUS: Final[int]  # it is over
CALL_WINDOW: Final[int]  # call_next for more
CALL_LAST_WINDOW: Final[int]  # over with these records
CALL_GONE: Final[int]  # over; nobody can know how
CALL_AGAIN: Final[int]  # not carried out: where is the partition?
CALL_LET_GO: Final[int]  # cancelled before: its place is free now
CALLS_MAX: Final[int]

# What a worker's loop is at: worker_beat().
ACTIVITY_STARTING: Final[int]
ACTIVITY_PYTHON: Final[int]
ACTIVITY_ENGINE: Final[int]  # and does not wait for anything but a file
ACTIVITY_WAITING: Final[int]  # for something to do

# Stored records, and why a scan of them stops (native/src/log/record.h).
RECORD_HEADER_SIZE: Final[int]
INDEX_ENTRY_SIZE: Final[int]
PAYLOAD_SIZE_MAX: Final[int]
PRODUCERS_FILE_BYTES_MAX: Final[int]
PRODUCERS_FILE_READ_MAX: Final[int]
USER_HEADERS_SIZE_MAX: Final[int]
RECORD_OK: Final[int]
RECORD_TRUNCATED: Final[int]
RECORD_BAD_LENGTH: Final[int]
RECORD_BAD_OFFSET: Final[int]
RECORD_BAD_TIMESTAMP: Final[int]
RECORD_BAD_CHECKSUM: Final[int]

# partition_level, and whose offset is stored (native/src/log/partition.h).
LEVEL_WRITTEN: Final[int]
LEVEL_MEMORY: Final[int]
LEVEL_DURABLE: Final[int]
OFFSET_CONSUMER: Final[int]
OFFSET_GROUP: Final[int]
CLOCK_STEP_US: Final[int]  # times and clocks that are nearer do not differ

# What clients connect to (native/src/engine/listeners.h).
LISTENER_TCP: Final[int]
LISTENER_UNIX: Final[int]
LISTENER_WEBSOCKET: Final[int]

# What clients speak (native/src/wire/dialect.h).
DIALECT_CLASSIC: Final[int]
DIALECT_IGGY09: Final[int]
DIALECT_UNNAMED: Final[int]

def shared_region_bytes(shards: int) -> int: ...
def shared_region_format(fd: int, shards: int) -> None:
    """Sizes a fresh memfd and writes its header (supervisor)."""

def shared_clock_begin(
    fd: int,
    jump_max_us: int,
    believed_us: int,
    stamps_us: int,
    believed_doubted_us: int,
    stamps_doubted_us: int,
    doubts: bytes,
    since_boot_us: int,
) -> None:
    """What time it is for all workers to come (supervisor); times as in clock_memory.Recalled. A jump is believed when
    it has lasted as long as it is far, or as `jump_max_us` (0: every clock is believed). OSError."""

def clock_first_younger(now_us: int, stamp_us: int, age_us: int, doubts: bytes, /) -> int:
    """The first stamp of what has not reached that age; the others as in ExpiryClock. What was stamped in this boot
    counts as stored now, while stamps are behind."""

def worker_beat(fd: int, shard: int) -> tuple[int, int]:
    """(passes of the loop, activity) of a shard's worker, from the shared region (supervisor). OSError."""

def owner(namespace: int, shards: int) -> int: ...
def xxh32(data: bytes) -> int: ...
def probe() -> str:
    """'' when io_uring with the needed features can be used here, else the reason as one sentence."""

def tls_inspect(
    pairs: list[tuple[bytes, bytes]], clients: int, clients_ca: bytes, only_13: bool, ciphers: str, /
) -> list[int]:
    """When each certificate ends, in seconds of unix time. ValueError as Engine.use_tls."""

def tls_self_signed() -> tuple[bytes, bytes]:
    """A certificate for localhost and its key, PEM. MemoryError."""

def memory_bind_thread(node: int, /) -> None:
    """New memory of this thread and of those it starts later comes from the NUMA node alone (MPOL_BIND). OSError."""

def memory_bind_memfd(fd: int, size_bytes: int, node: int, /) -> None:
    """The same for the pages of a memfd, whichever process touches them first. OSError."""

def memory_policy(fd: int = ..., /) -> tuple[int, list[int]]:
    """(mode, nodes) of this thread, or of the first page of a memfd: 0 default, 2 bind. OSError."""

def scan_file(
    log_fd: int,
    from_position: int,
    segment_start_offset: int,
    expected_offset: int,
    minimum_timestamp: int,
    index_fd: int,
) -> Scan:
    """OSError. See native/src/log/record.h."""

def find_later(
    log_fd: int,
    from_position: int,
    at_least_offset: int,
    minimum_timestamp: int = 0,
    at_most_offset: int = ...,
    end_position: int = ...,
) -> FoundRecord | None:
    """The first valid record that starts in a range of bytes, None: there is none. OSError. See
    native/src/log/record.h."""

def scan_buffer(
    data: bytes | memoryview,
    expected_offset: int,
    minimum_timestamp: int,
    segment_start_offset: int,
    base_position: int,
    sparse_end: int = 0,
) -> IndexedScan:
    """As scan_file over memory. `sparse_end`: offsets may skip up to there (exclusive)."""

def recover_partition(directory: str, incarnation: int, boot: bytes, /) -> RecoveredPartition | None:
    """None for one that needs the care of shardd/log/recovery.py. `boot`: of this machine, 16 bytes, or none where
    nobody tells it. See native/src/log/recover.h."""

def producers_proven_end(content: bytes, incarnation: int, boot: bytes, end: int, torn: bool, /) -> int:
    """Where a log that ends at `end` has to be cut by this file of producers. See native/src/log/producers.h."""

def digest_file(fd: int, length: int, /) -> bytes:
    """XXH3-128 of the first `length` bytes, canonical. OSError, also when the file is shorter."""

def pack_block(plain: bytes, codec: int, level: int, /) -> bytes:
    """The packed form of a block (native/src/log/codec.h); empty when it is not smaller. ValueError."""

def unpack_block(packed: bytes, codec: int, size: int, /) -> bytes | None:
    """The `size` plain bytes of a block; None when it is damaged. ValueError."""

def record_ids(data: bytes, first_offset: int, /) -> tuple[int, bytes]:
    """Of the whole records at the front: their bytes, and 24 for each (id, timestamp). It ends before the first one
    that is cut, not at its offset, or damaged."""

def send_request_parse(payload: bytes) -> tuple[int, SendRequest | None]:
    """(status, None or the request)."""

def batch_check(batch: bytes, count: int, /) -> int:
    """Status of what stands behind the metadata of a send: `count` index entries, then the records."""

def batch_from_sent(data: bytes, form: int, count: int, /) -> SentBatch:
    """The records that earlier clients send (native/src/wire/record_forms.h). `form`: 20 or 24, whose count nobody
    tells, or 56: index entries in front."""

def records_to_form(records: bytes, count: int, form: int, /) -> bytes:
    """Stored records in the form 36, 40, 45 or 56 (native/src/wire/record_forms.h)."""

def batch_assign(
    messages: bytes, count: int, first_offset: int, timestamp: int, relative_offset: int, position: int, seed: int
) -> tuple[bytes, bytes]:
    """(records, index) as stored; ids drawn from a fixed seed."""

class Engine:
    def __init__(
        self,
        *,
        shard: int,
        shards: int,
        shared_fd: int,
        pool_fds: list[int],
        doorbell_fds: list[int],
        handover_receive_fd: int,
        handover_send_fds: list[int],
        pool_bytes: int,
        connections_max: int,
        connections_per_address_max: int,
        connections_before_login_max: int,
        login_timeout_ms: int,
        idle_timeout_ms: int,
        request_timeout_ms: int,
        partial_frame_timeout_ms: int,
        slow_reader_timeout_ms: int,
        sync_interval_ms: int,
        save_interval_ms: int,  # 0: no message saver
        save_syncs: bool,
        journal_messages_max: int,
        journal_bytes_max: int,
        consumer_offsets_max: int,
        socket_migration: bool,
        dialect: str,
        pipeline_window_requests: int,
        data_directory: str | None,
        disk_reserve_bytes: int,
        io_engine: str,
        websocket_frame_bytes_max: int,
        websocket_message_bytes_max: int,
        websocket_accept_unmasked: bool,
        websocket_origins: str,
        tls_mode: int,
        websocket_tls_mode: int,
        clients_have_names: bool,
        cache_indexes: int,
        waiting_polls_max: int,
        waiting_polls_per_user_max: int,
        sample_every: int,
        busy_poll_us: int,
        tcp_proxies: str,  # a line for each network; "": no connection begins with a PROXY protocol header
        websocket_proxies: str,
    ) -> None: ...
    @property
    def generation(self) -> int: ...
    def listen(self, fd: int, kind: int = ..., /) -> None: ...
    def stop_listening(self) -> None: ...
    def change_limits(
        self,
        connections_per_address_max: int,
        connections_before_login_max: int,
        login_timeout_ms: int,
        idle_timeout_ms: int,
        request_timeout_ms: int,
        partial_frame_timeout_ms: int,
        slow_reader_timeout_ms: int,
        /,
    ) -> None:
        """Of open connections too, from now on."""

    def turn(self, epoll_fd: int, timeout_ms: int) -> Turn:
        """Runs until an event for Python, readiness of epoll_fd, or the timeout (-1: none). GIL released.
        `ready`: epoll_fd is; `events`: ...Event, in the order in which they happened."""
    # answers
    def reply(self, connection: int, status: int, payload: bytes = ..., close: bool = ...) -> None:
        """Answers the request that the connection has in Python's hands. Unknown connection: nothing happens."""
    def resume(self, connection: int) -> None:
        """Executes the held frame again (after route_put)."""
    def use_tls(
        self,
        port: int,
        pairs: list[tuple[bytes, bytes]],
        clients: int,
        clients_ca: bytes,
        only_13: bool,
        ciphers: str,
        /,
    ) -> None:
        """For those who connect to this port (tls_material.PORTS) from now on. ValueError(why, number of the pair)."""
    def use_tickets(self, secret: bytes, period: int, /) -> None:
        """What session tickets are sealed with, the same in all workers. ValueError."""
    def execute_poll(
        self,
        connection: int,
        owner: int,
        namespace: int,
        incarnation: int,
        strategy: int,
        value: int,
        count: int,
        group: int,
        assignment: int,
        user: int,
        auto_commit: bool,
        /,
    ) -> None:
        """Executes the poll that the connection has in Python's hands on a partition of shard `owner`, with the offsets
        of a consumer group, in the assignment of that generation.

        GroupPolledEvent follows, or RouteMissEvent when the owner does not know the partition, or RequestEvent
        again."""
    def begin_session(self, connection: int, session: int, memory: bytes, /) -> None:
        """The number of its session in a dialect that has one (0.9), from now on; 0: none. `memory`: of an earlier
        connection of its client, whose last number and answer go on here; b"": there is none. ValueError."""
    def session_memory(self, connection: int, /) -> bytes:
        """The number of the last request of its session, and its answer; b"": there was none."""

    def speak(self, connection: int, dialect: int, /) -> None:
        """The dialect of a connection that waits for Python from now on, which its request is answered in, too.
        ValueError: there is none of that number."""

    def close_connection(self, connection: int, status: int = ...) -> None:
        """Closes; status != 0 is sent as an unsolicited error frame first."""
    def close_all(self, status: int) -> None:
        """From now on every connection gets `status` as soon as it is idle, and is closed."""
    def connections(self) -> int: ...
    def stale_connections(self, age_ms: int, /) -> list[int]:
        """Connections that were opened and sent their last PING longer ago."""
    def silence_ms(self, connection: int, /) -> int:
        """Milliseconds since its client sent or took bytes; 0: it waits for an answer, or is not open."""
    def set_session(self, connection: int, user_id: int, authenticated: bool) -> None: ...
    def has_left(self, connection: int) -> bool:
        """True when the connection is closed, or its client has ended its half and no request of it is left."""
    def move(self, connection: int, target_shard: int, session_state: bytes) -> bool:
        """Hands the socket over (SCM_RIGHTS). False: not possible now, the connection stays."""
    # Python as a caller (shardd.engine.calls). What a call is named by, or 0: over a limit, nothing has happened.
    # CallEvent follows. ValueError for an owner that is no shard
    def call_append(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        count: int,
        batch: bytes,
        expected_offset: int = -1,
        distinct_timestamps: bool = False,
        /,
    ) -> int:
        """`expected_offset` below 0: any."""
    def call_prepare(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        count: int,
        batch: bytes,
        expected_offset: int = -1,
        distinct_timestamps: bool = False,
        /,
    ) -> int:
        """As call_append, for a large batch: it begins when `call_fill` has copied all of it."""
    def call_fill(self, token: int, batch: bytes, bytes_max: int, /) -> bool:
        """Copies more of that very batch (ValueError for another length); True: there is more."""
    def call_read(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        strategy: int,
        value: int,
        count: int,
        kind: int,
        consumer: int,
        assignment: int,
        user: int,
        name: int,
        auto_commit: bool,
        /,
    ) -> int:
        """`user`, `name`: as in `offset_store`."""
    def call_store(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        kind: int,
        consumer: int,
        offset: int,
        assignment: int,
        user: int,
        name: int,
        /,
    ) -> int:
        """`user`: incarnation of the user for whom the entry counts, 0: nobody; `name`: hash of the consumer's name."""
    def call_wait(self, owner: int, namespace: int, incarnation: int, user_id: int, wait_ms: int, /) -> int:
        """The event comes when polls may see more, or it is time to look for another reason (calls.h). 0 also when too
        many wait."""
    def call_next(self, token: int, /) -> None:
        """The next window; CallEvent follows. Unknown calls are no error. MemoryError: it has to be cancelled."""
    def call_cancel(self, token: int, /) -> bool:
        """Nobody wants its end. True: it keeps its place for now, and CALL_LET_GO follows; False: no event follows any
        more. Unknown calls are no error."""
    def balance(self, counter: int, partitions: int, /) -> int:
        """The partition that a balanced send goes to; counts. ValueError without partitions."""
    # consumer groups
    def seat_put(
        self,
        connection: int,
        group: int,
        generation: int,
        offsets_id: int,
        rotation: int,
        last_polled: int,
        partitions: list[SeatPartition],
        /,
    ) -> bool:
        """Lends a membership to the engine, for requests written like the one in Python's hands
        (native/src/core/seat.h).

        Until seat_take or the end of the topic. False: not possible. `resume` executes the request then."""
    def seat_take(self, connection: int, group: int, /) -> SeatState | None:
        """Takes it back. None: not lent."""
    def fence_drop(self, namespace: int, incarnation: int, group: int, /) -> None:
        """Forgets the newest generation of a deleted group (by the id of its offsets); unknown ones are no error."""
    # routes
    def route_topic_known(self, namespace: int, /) -> bool:
        """Whether there are partitions of the topic with this namespace of partition 0."""
    def route_topic_put(
        self, stream_id: int, namespace: int, counter: int, incarnations: array[int], slots: array[int], /
    ) -> None:
        """The partitions of a topic from 0 on, for all routes that follow; those that there are end. `incarnations`:
        a u64 for each; `slots` of their statistics: a u32. Valid until the topic or stream ends. ValueError."""
    def route_put(
        self,
        user_id: int,
        stream_identifier: bytes,
        topic_identifier: bytes,
        namespace: int,
        *,
        can_send: bool,
        can_poll: bool,
        user_incarnation: int,
    ) -> None:
        """Valid until the user, topic or stream ends. `user_incarnation`: of the user for whom offsets that are stored
        by it count, 0: for nobody. KeyError: the topic is not known."""
    def routes_end_user(self, user_id: int, /) -> None:
        """Those of the user (and of a few others) are decided again."""
    def routes_end_topic(self, namespace: int, /) -> None:
        """Of everybody."""
    def routes_end_stream(self, stream_id: int, /) -> None: ...
    def routes_end_all(self) -> None: ...

    # users whose stored offsets count for them, by incarnation
    def users_begin(self) -> None:
        """From now on a user that is not known is gone. Once, when those of the start are."""
    def user_put(self, incarnation: int, /) -> None: ...
    def user_drop(self, incarnation: int, /) -> None: ...
    # partitions that this shard owns. What changes one names its incarnation: KeyError for another one, as for one that
    # is not open (tests/unit/test_stale_incarnations.py). Behind an await a namespace is no address.
    def partition_open(
        self,
        namespace: int,
        incarnation: int,
        slot: int,
        directory: str,
        segment_size_bytes: int,
        state: int,
        segments: list[SegmentInfo],
        level: int,
        damaged: list[WithheldRange],
        durable_end: int,
        log_start: int = 0,
        limits: PartitionLimits = ...,
        waiting: bytes = ...,
        /,
    ) -> tuple[int, int]:
        """level as partition_level in native/src/log/partition.h, durable_end: what the last checkpoint covers.
        Nothing is served below log_start. `waiting`: the last entries of the active index that its file does not have.
        Reads the stored offsets and the producers; errno of what could not be read of each, 0: it could. At level
        durable it returns when the device has what was found. OSError."""
    def partition_segments(self, namespace: int, /) -> list[SegmentInfo]:
        """What is in the files now, the active one last; none that lies before the log start. KeyError."""
    def partition_change_layout(self, namespace: int, incarnation: int, start_offset: int, layout: int, /) -> bool:
        """The files of this sealed segment are those of another layout from now on. False: not now, it is being read or
        not synced; or there is no such segment. KeyError."""
    def partition_surveyed(
        self,
        namespace: int,
        incarnation: int,
        segment: int,
        first_timestamp: int,
        damaged: list[WithheldRange],
        /,
    ) -> None:
        """The survey that DoubtEvent asked for has ended, or cannot be made (first timestamp 0, no ranges): polls that
        wait for it start again, once. Another incarnation learns nothing. KeyError."""
    def partition_damage(self, namespace: int, /) -> list[WithheldRange]:
        """What is withheld, ascending. KeyError."""
    def partition_close(self, namespace: int, incarnation: int, /) -> None:
        """One that is not open, or another incarnation, is no error."""
    def partition_flush(self, namespace: int, incarnation: int, /) -> int: ...
    def partition_sync_lost(self, namespace: int, incarnation: int, errno: int, /) -> None:
        """A sync of a file of that incarnation failed outside the engine: as if one of its own had. KeyError."""
    def partition_delete_segments(self, namespace: int, incarnation: int, count: int, trash: str, /) -> DeletedSegments:
        """Takes up to `count` of the oldest sealed segments away; files become "<trash>-<start>.log" and .index.
        KeyError."""
    def partition_set_limits(self, namespace: int, incarnation: int, limits: PartitionLimits, /) -> None:
        """As those of partition_open. KeyError."""
    # producers whose batches are stored once (docs/adr/0073)
    def producers_begin(self, boot: bytes, barrier: int, known: int, /) -> None:
        """Before partitions are opened. `boot`: 16 bytes of this boot of the machine; who began up to the record
        `barrier` of the metadata is a stranger to partitions without producers, and up to `known` to those whose
        producers cannot be trusted. ValueError."""
    def producer_put(self, producer: int, user_id: int, epoch: int, begun: int, /) -> None:
        """It is known from now on, in this epoch alone. ValueError, MemoryError."""
    def producer_drop(self, producer: int, /) -> None:
        """It is not known any more; unknown ones are no error."""
    def partition_set_window(self, namespace: int, incarnation: int, window: IdWindow, known: bytes = ..., /) -> bool:
        """Which ids of messages are compared from now on; `known`: those of the newest messages that are there, as
        `record_ids` gives them, oldest first, not more than the window has. False: no memory for them. KeyError."""
    def partition_set_readonly(self, namespace: int, incarnation: int, readonly: bool, /) -> None:
        """Whether sends get 4010, from now on; a large batch that is being written is finished. KeyError."""
    def partition_set_paused(self, namespace: int, incarnation: int, paused: bool, /) -> None:
        """Whether ResumedEvent tells, once, that something was stored from now on that has no distinct timestamps: what
        Liftbridge stores has, and its door knows of itself what ends a pause. KeyError."""
    def topic_set_send_limits(
        self, own: list[SendingPartition], limits: SendLimits, partitions: list[tuple[int, int]], /
    ) -> None:
        """What the partitions `own` (those that are not open do not count) take of producers from now on. `partitions`:
        slot and incarnation of all of the topic."""
    def partition_lease(self, namespace: int, incarnation: int, offset: int, /) -> None:
        """`partition_clean` leaves the files of messages from there on; 2^64-1: none. KeyError."""
    def partition_clean(self, namespace: int, incarnation: int, trash: str, /) -> Cleaned:
        """One step of the retention: the log start moves with age and count of messages, files of segments before it go
        as with partition_delete_segments. KeyError."""
    def partition_oldest_segment(self, namespace: int, incarnation: int, /) -> OldestSegment: ...
    def partition_drop_oldest(self, namespace: int, incarnation: int, /) -> int:
        """The log begins behind its oldest segment; bytes that are not served any more. KeyError."""
    def partition_roll_early(self, namespace: int, incarnation: int, /) -> int:
        """Seals the active segment when all of it was acknowledged more than a second ago. A status. KeyError."""
    def partition_slowest(self, namespace: int, /) -> StoredOffset | None:
        """The lowest stored offset. KeyError."""
    def expiry_clock(self) -> ExpiryClock:
        """What is known of the clocks that all shards share."""
    def now_us(self) -> int:
        """The believed time, by which everything ages."""
    def stamp_us(self) -> int:
        """The time that is written down."""
    def session_number(self) -> int:
        """Higher than all before, on whatever shard."""
    def partition_sync(self, namespace: int, incarnation: int, token: int, /) -> None:
        """Brings all there is now to the device. SyncedEvent with the token follows: 0, 10009, or 3007 when the
        partition was closed meanwhile. KeyError."""
    def partition_set_level(self, namespace: int, incarnation: int, level: int, /) -> None:
        """For what is acknowledged from now on (native/src/log/partition/level.c). KeyError, ValueError."""
    def partition_is_durable(self, namespace: int, /) -> bool: ...
    def offsets_unused(self, namespace: int, incarnation: int, first: int, count: int, age_us: int, /) -> UnusedPage:
        """Of the entries at `count` places from `first` on those that were not used for `age_us`; 0: all. KeyError."""
    def offset_get(self, namespace: int, kind: int, consumer: int) -> int | None:
        """OSError: the file of the stored offsets cannot be read (now). KeyError."""

    # `assignment` > 0: as a member of a group in that generation; 3022 when a newer one was seen
    def offset_delete(
        self, namespace: int, incarnation: int, kind: int, consumer: int, assignment: int = 0, /
    ) -> int: ...
    def offset_store(
        self,
        namespace: int,
        incarnation: int,
        kind: int,
        consumer: int,
        value: int,
        assignment: int = 0,
        user: int = 0,
        /,
    ) -> int:
        """`user`: incarnation of the user for whom the entry counts, 0: nobody."""
    # shared region
    def stats(self, slot: int) -> StatsSlot: ...
    def stats_sums(self, partitions: tuple[object, ...], first: int, end: int, /) -> StatsSums:
        """Of `partitions[first:end]`, by their `slot` and `incarnation`; one whose slot holds another incarnation is
        empty and has one segment."""
    def group_lag(self, namespace: int, group: int, first: int, end: int, /) -> GroupLag:
        """Of partitions [first, end) of the topic whose partition 0 has this namespace, those that are open here.
        `group`: the id of its offsets. Reads no file."""
    def counter_reset(self, counter: int) -> None: ...
    # logins, the same on all shards (native/src/net/logins.h); `now_us` is CLOCK_MONOTONIC
    def login_failures(self, key: bytes, now_us: int, /) -> int: ...
    def login_begin(self, key: bytes, now_us: int, /) -> None:
        """The attempt counts as failed until it is taken back."""
    def login_take_back(self, key: bytes, now_us: int, /) -> None: ...
    def login_clear(self, key: bytes, now_us: int, /) -> None: ...
    def login_moment(self, key: bytes, now_us: int, wait_us: int, /) -> int:
        """When the next attempt under the key may begin: so long after now, and after the moment given before."""
    def login_remember(self, account: bytes, pair: bytes, now_us: int, /) -> None:
        """A pair of address and account that logged in; the account says which ones it may drive out."""
    def login_is_known(self, account: bytes, pair: bytes, now_us: int, age_us: int, /) -> bool: ...
    # clients of doors, counted like connections (native/src/net/admission.h); `host`: an IP address, ValueError
    def client_enter(self, host: str, /) -> bool:
        """Counts one that is not logged in. False: there is no room, it is not counted."""
    def client_leave(self, host: str, authenticated: bool, /) -> None: ...
    def client_authenticated(self, authenticated: bool, /) -> None:
        """A counted client has logged in (True) or out."""
    # peers
    def peer_down(self, shard: int) -> None: ...
    def peer_up(self, shard: int, generation: int) -> None: ...
    # operation
    def counters(self) -> dict[str, int]:
        """Since the start; connections, pool_*, routes, partitions and syncs_running are what there is now."""
    def gauges(self) -> dict[str, int]:
        """What is queued up now. Walks lists: for whoever asks, not for the path of a request."""
    def samples(self) -> list[Sample]:
        """Requests that were chosen by `sample_every` and have ended since the last call."""
    def latency(self) -> list[int]:
        """Answered requests by the time from the complete frame to the whole answer with the kernel: bucket 0 below
        1 us, bucket i from 2**(i - 1) to 2**i - 1 us, the last one everything longer."""
    def flush_all(self) -> list[int]:
        """Shutdown: starts the sync of every dirty partition that is not being synced; descriptors to fdatasync and
        close, then `flush_all_done`."""
    def flush_all_done(self, errno: int) -> None: ...
    def close(self) -> None: ...
