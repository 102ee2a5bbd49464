"""The client's own codec against the server's: both sides of every command, each from its own description."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.client import codec, commands, idempotence, messages, statuses, values, wire
from shardd.client.errors import Fate, NotFoundError, ProtocolError, SettingsError, UnavailableError, of_status
from shardd.client.heartbeat import announce_heartbeat
from shardd.client.messages import History
from shardd.client.unused_offsets import unused_offsets
from shardd.protocol import account_replies, permissions, replies
from shardd.protocol.catalogue import EXTENSIONS, decode
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages

RIGHTS = values.Permissions(
    read_servers=True,
    streams={7: values.StreamRights(True, topics={1: values.TopicRights(send_messages=True), 2: values.TopicRights()})},
)
ALL: list[commands.Command[Any]] = [
    commands.ping(),
    commands.login("n", "p", "1"),
    commands.login_with_token("t"),
    commands.logout(),
    idempotence.init_producer(),
    idempotence.init_producer(7, 3, renew=True),
    commands.stats(),
    commands.snapshot((1, 5), compression=4),
    commands.cluster(),
    commands.me(),
    commands.connected(9),
    commands.all_connected(),
    commands.user(3),
    commands.users(),
    commands.create_user("bob", "secret", active=False, permissions=RIGHTS),
    commands.delete_user("bob"),
    commands.update_user("bob", name="rob", active=True),
    commands.update_permissions("bob", None),
    commands.change_password(0, "a", "b"),
    commands.tokens(),
    commands.create_token("t", expiry_us=5),
    commands.delete_token("t"),
    commands.poll("c", "s", 1, 2, strategy=commands.TIMESTAMP, value=9, count=3),
    commands.poll("g", "s", 1, None, group=True),
    commands.poll("g", "s", 1, None, group=True, wait_ms=1000),
    commands.poll("g", "s", 1, None, group=True, wait_ms=1000, bytes_max=1 << 20),
    commands.store_offset("c", "s", 1, 2, 1 << 40, history=History(1 << 50, 7)),
    commands.flush("s", "t", 1),
    commands.stored_offset("g", "s", "t", group=True),
    commands.store_offset(4, "s", "t", 1, 99),
    commands.delete_offset("c", "s", "t", 0),
    commands.stream("s"),
    commands.streams(),
    commands.create_stream("s"),
    commands.delete_stream("s"),
    commands.update_stream(0, "n"),
    commands.purge_stream("s"),
    commands.topic("s", "t"),
    commands.topics("s"),
    commands.create_topic("s", "t", 3, compression=2, expiry_us=wire.NEVER, max_bytes=1 << 30),
    commands.delete_topic("s", "t"),
    commands.update_topic("s", "t", "n", expiry_us=5),
    commands.purge_topic("s", "t"),
    commands.create_partitions("s", "t", 2),
    commands.delete_partitions("s", "t", 2),
    commands.delete_segments("s", "t", 1, 2),
    commands.group("s", "t", "g"),
    commands.groups("s", "t"),
    commands.create_group("s", "t", "g"),
    commands.delete_group("s", "t", 1),
    commands.join_group("s", "t", "g"),
    commands.leave_group("s", "t", "g"),
    commands.extensions(),
    commands.metrics(),
    commands.bounds("s", "t", (1, 2), segments=True),
    commands.bounds("s", "t", for_sender=True),
    commands.set_topic_settings("s", "t", {"ack": "durable"}),
    commands.change_topic("s", "t", name="u", compression=2, expiry_us=0, max_bytes=1 << 40, replication=1),
    commands.change_topic("s", 7, max_bytes=0),
    commands.topic_settings("s", "t"),
    commands.lease_files("s", "t", 3, 1 << 40, 600),
    announce_heartbeat(30_000),
    unused_offsets("s", "t", 3, 1024, 1 << 40, delete=True),
]


@pytest.mark.parametrize("command", ALL, ids=lambda command: f"{command.code:#x}")
def test_the_server_reads_what_the_client_writes(command: commands.Command[Any]) -> None:
    decoded = decode(command.code, command.payload)
    assert decoded.encode() == command.payload  # so every field was where the server looks for it


def test_every_command_of_the_server_is_there() -> None:
    wanted = {int(code) for code in Code} | {each.code for each in EXTENSIONS}
    sends = {commands.SEND, commands.SEND_ONCE, int(ExtensionCode.SEND_ONCE_DIGEST)}  # the last: Spark's sink
    assert {each.code for each in ALL} | sends == wanted


def test_statuses_have_the_names_of_the_server() -> None:
    assert {status.value: status.name.lower() for status in Status} == statuses.NAMES


def test_permissions_come_back() -> None:
    decoded = decode(Code.CREATE_USER, commands.create_user("bob", "secret", permissions=RIGHTS).payload)
    user = account_replies.UserDetails(1, 2, True, "bob", getattr(decoded, "permissions"))  # noqa: B009
    assert isinstance(user.permissions, permissions.Permissions)
    found = commands.user("bob").read(user.encode_details())
    assert found == values.User(1, 2, True, "bob", RIGHTS)


class Codec(Protocol):
    """`messages.py`, or `codec.py` with what is native."""

    def records_of(self, payloads: Iterable[bytes], headers: bytes = b"") -> list[bytes]: ...
    def encode_batch(self, head: bytes, records: list[bytes]) -> bytes: ...
    def decode_polled(self, answer: bytes) -> messages.Polled: ...
    def payload_lines(self, answer: bytes) -> messages.PayloadLines: ...


def test_a_development_environment_has_the_native_codec() -> None:
    assert codec.IS_NATIVE


@pytest.fixture(params=[messages, codec], ids=["pure", "native"])
def used(request: pytest.FixtureRequest) -> Codec:
    found: Codec = request.param
    return found


def test_a_batch_is_the_one_that_the_server_knows(used: Codec) -> None:
    head = messages.batch_head("s", 3, key=b"key")
    records = [messages.encode_record(b"one", b"h", 5), messages.encode_record(b"")]
    given = [NewMessage(b"one", b"h", 0, 5), NewMessage(b"")]
    expected = SendMessages.of("s", 3, Partitioning(PartitioningKind.KEY, key=b"key"), given)
    assert used.encode_batch(head, records) == expected.encode()


def test_records_are_made_of_what_has_bytes(used: Codec) -> None:
    expected = [messages.encode_record(each, b"head") for each in (b"", b"a", b"b" * 1000)]
    payloads: list[Any] = [b"", bytearray(b"a"), memoryview(b"b" * 1000)]
    assert used.records_of(payloads, b"head") == used.records_of(iter(payloads), b"head") == expected
    assert used.records_of([]) == []
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            used.records_of([b"good", wrong])  # type: ignore[list-item]


def test_a_payload_that_no_server_takes_is_refused(used: Codec) -> None:
    assert len(used.records_of([bytes(messages.PAYLOAD_BYTES_MAX)])[0]) == messages.PAYLOAD_BYTES_MAX + 64
    with pytest.raises(SettingsError, match="more than 64000000 bytes"):
        used.records_of([b"", bytes(messages.PAYLOAD_BYTES_MAX + 1)])


def polled_answer(stored: Iterable[tuple[int, int, bytes, bytes]]) -> bytes:
    """Of (id, offset, payload, headers)."""
    records = [
        messages.RECORD_HEAD.pack(1 << 63, id_.to_bytes(16, "little"), offset, 5, 6, len(headers), len(payload), 0)
        + payload
        + headers
        for id_, offset, payload, headers in stored
    ]
    return replies.PolledHead(2, 7, len(records)).encode() + b"".join(records)


U64 = st.integers(0, (1 << 64) - 1)
SMALL = st.binary(max_size=40)


@given(st.lists(st.tuples(st.integers(0, (1 << 128) - 1), U64, SMALL, SMALL), max_size=5))
def test_both_codecs_read_the_same(stored: list[tuple[int, int, bytes, bytes]]) -> None:
    answer = polled_answer(stored)
    polled = codec.decode_polled(answer)
    assert polled == messages.decode_polled(answer) and type(polled) is messages.Polled
    for message, (id_, offset, payload, headers) in zip(polled.messages, stored, strict=True):
        assert type(message) is messages.Message
        assert message == (2, offset, 5, payload, headers, id_, 6, 1 << 63)
        assert message._replace(offset=0).payload == payload and hash(message) == hash(tuple(message))
    if all(offset < (1 << 64) - 1 for _, offset, _, _ in stored):
        assert codec.payload_lines(answer) == messages.payload_lines(answer)


@given(st.lists(SMALL, max_size=5), SMALL, SMALL)
def test_both_codecs_write_the_same(payloads: list[bytes], headers: bytes, head: bytes) -> None:
    records = codec.records_of(payloads, headers)
    assert records == messages.records_of(payloads, headers)
    assert codec.encode_batch(head, records) == messages.encode_batch(head, records)


@given(SMALL.map(bytearray), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_damaged_answers_are_read_the_same_or_refused(payload: bytearray, damage: list[tuple[int, int]]) -> None:
    answer = bytearray(polled_answer([(1, 2, bytes(payload), b"h"), (3, 4, b"", b"")]))
    for at, value in damage:
        answer[at % len(answer)] = value
    results: list[Any] = []
    for one in (messages, codec):
        for read in (one.decode_polled, one.payload_lines):
            try:
                results.append(read(bytes(answer)))
            except ProtocolError:
                results.append(None)
    assert results[:2] == results[2:]


def test_lines_of_a_poll_are_its_payloads(used: Codec) -> None:
    answer = polled_answer([(1, 7, b"one", b"h"), (2, 9, b"", b""), (3, 10, b"t\nwo", b"")])
    assert used.payload_lines(answer) == (3, 11, 1 << 63, b"one\n\nt\nwo\n")
    assert used.payload_lines(polled_answer([])) == (0, 0, 0, b"")
    for size in range(len(answer)):
        with pytest.raises(ProtocolError):
            used.payload_lines(answer[:size])


def test_a_poll_comes_back_and_a_cut_one_is_refused(used: Codec) -> None:
    record = messages.encode_record(b"payload", messages.encode_headers({"k": "v", "n": 5, "f": 0.5, "b": b"x"}))
    answer = replies.PolledHead(2, 7, 1).encode() + record
    polled = used.decode_polled(answer)
    assert (polled.partition, polled.current_offset, polled.messages[0].payload) == (2, 7, b"payload")
    assert messages.headers_of(polled.messages[0].headers) == {"k": "v", "n": 5, "f": 0.5, "b": b"x"}
    for size in range(len(answer)):
        with pytest.raises(ProtocolError):
            used.decode_polled(answer[:size])


def test_group_and_offsets_come_back() -> None:
    members = (replies.GroupMemberSummary(4, (0, 2)), replies.GroupMemberSummary(0, ()))
    details = replies.GroupDetails(replies.GroupSummary(1, 3, 2, "g"), members)
    group = commands.group("s", "t", "g").read(details.encode())
    assert group is not None and group.members == (values.Member(4, (0, 2)), values.Member(0, ()))
    assert commands.group("s", "t", "g").read(b"") is None
    assert Reader(details.encode()).u32() == group.id


def test_errors_say_what_became_of_the_request() -> None:
    assert isinstance(of_status(1009), NotFoundError)
    sent, other = of_status(11001, commands.SEND), of_status(11001, 302)
    assert isinstance(sent, UnavailableError) and sent.retryable
    assert (sent.fate, other.fate, of_status(12001).fate) == (Fate.NOT_SENT, Fate.UNKNOWN, Fate.UNKNOWN)
    assert "unknown" in str(of_status(77777))


def test_names_that_do_not_fit_are_refused_here() -> None:
    for bad in ("", "x" * 256):
        with pytest.raises(SettingsError):
            commands.stream(bad)
