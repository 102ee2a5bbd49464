"""Commands by code with classic payloads: connections and clients of doors get the same bytes from the same service,
and each of them is refused what only the other has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardd.dispatch.classic.execution import ClassicCommands
from shardd.protocol import catalogue, requests
from shardd.protocol.catalogue import COMMANDS, POLL_RANGE, decode
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import DoorCode, ExtensionCode
from shardd.protocol.legacy.generations import GENERATIONS
from shardd.protocol.legacy.requests import decode as decode_legacy
from shardd.protocol.poll_requests import PollMessages, WaitForMessages
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from shardd.service.identity import Identity
from tests.support.iggy09 import Connection
from tests.unit.services_harness import Workers
from tests.unit.test_catalogue import changed

FIRST = PollMessages(Consumer(ConsumerKind.CONSUMER, 1), "s", "t", 0, PollingKind.FIRST, 0, 10, False)
TO_THE_PARTITION = Partitioning(PartitioningKind.PARTITION, 0)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data")) as running:
        running.create_user("plain")
        wire = running.connect()
        wire.create_topic(wire.create_stream("s"), "t", 1)
        yield running


@pytest.fixture
def root(workers: Workers) -> Identity:
    return Identity(0, workers.root_ref().incarnation)


@pytest.fixture
def plain(workers: Workers) -> Identity:
    state = workers.context(0).metadata.state
    user = state.users[state.user_ids["plain"]]
    return Identity(user.id, user.incarnation)


def run(workers: Workers, identity: Identity, code: int, payload: bytes | memoryview = b"", door: str = "") -> bytes:
    context = workers.context(0)
    answer = workers.call(ClassicCommands(context.metadata, context.services).run(identity, code, payload, door), 0)
    assert answer is not None
    return answer


def status(workers: Workers, identity: Identity, code: int, payload: bytes = b"", door: str = "") -> Status:
    with pytest.raises(ShardError) as caught:
        run(workers, identity, code, payload, door)
    return caught.value.status


@pytest.mark.parametrize("door", ["", "http", "json"])
@pytest.mark.parametrize(
    ("code", "request_"),
    [
        (Code.GET_STREAMS, requests.Empty()),
        (Code.GET_STREAM, requests.StreamRequest("s")),
        (Code.GET_STREAM, requests.StreamRequest("nowhere")),
        (Code.GET_TOPIC, requests.TopicRequest("s", "t")),
        (Code.GET_USERS, requests.Empty()),
        (Code.GET_CLUSTER_METADATA, requests.Empty()),
        (ExtensionCode.LIST_EXTENSIONS, requests.Empty()),
    ],
)
def test_the_answer_has_the_bytes_that_a_connection_gets(
    workers: Workers, root: Identity, code: int, request_: requests.Empty, door: str
) -> None:
    payload = request_.encode()
    assert run(workers, root, code, payload, door) == workers.connect().request(code, payload)


def test_clients_of_doors_send_wait_and_poll_a_range(workers: Workers, root: Identity) -> None:
    wait = WaitForMessages("s", "t", 0, 0, 0).encode()
    assert run(workers, root, DoorCode.WAIT_FOR_MESSAGES, wait, "http") == b"\0"
    send = SendMessages.of("s", "t", TO_THE_PARTITION, [NewMessage(b"one"), NewMessage(b"two")]).encode()
    assert run(workers, root, Code.SEND_MESSAGES, memoryview(send), "http") == b""
    assert run(workers, root, DoorCode.WAIT_FOR_MESSAGES, wait, "liftbridge") == b"\1"
    polled = POLL_RANGE.reply(run(workers, root, DoorCode.POLL_RANGE, FIRST.encode(), "http"))
    assert (polled.head.messages_count, polled.first_offset, polled.end) == (2, 0, 2)
    assert polled.incarnation and b"two" in bytes(polled.records)


def test_a_client_of_a_door_gets_5_for_what_needs_a_connection(workers: Workers, root: Identity) -> None:
    needing = {code for code, entry in COMMANDS.items() if entry.needs_connection}
    assert len(needing) == 11
    assert {status(workers, root, code, door="http") for code in needing} == {Status.FEATURE_UNAVAILABLE}


def test_commands_of_other_ports_are_unknown(workers: Workers, root: Identity) -> None:
    logins = {code for code, entry in COMMANDS.items() if entry.changes_login}
    unknown = [("http", code) for code in {*logins, 2, 0x5344_00BF}]
    unknown += [(door, code) for door in ("", "metrics", "json") for code in DoorCode]
    unknown += [("", code) for code in (Code.SEND_MESSAGES, ExtensionCode.SEND_ONCE, 999)]
    found = {status(workers, root, code, FIRST.encode(), door) for door, code in unknown}
    assert found == {Status.INVALID_COMMAND}


def test_a_row_that_forgets_the_port_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    request = requests.GroupRequest("s", "t", "g").encode()
    monkeypatch.setattr(catalogue, "COMMANDS", changed(Code.JOIN_CONSUMER_GROUP, needs_connection=False))
    assert decode(Code.JOIN_CONSUMER_GROUP, request, "http") == requests.GroupRequest("s", "t", "g")
    monkeypatch.setattr(catalogue, "COMMANDS", changed(DoorCode.POLL_RANGE, doors=frozenset()))
    assert decode(DoorCode.POLL_RANGE, FIRST.encode()) == FIRST


def test_connections_of_all_dialects_do_not_have_commands_of_doors(workers: Workers) -> None:
    wires = workers.connect(), workers.anonymous()
    assert {wire.status(code, FIRST.encode()) for wire in wires for code in DoorCode} == {3}
    newer = Connection(workers.addresses[0])
    assert newer.login().status == 0
    assert {newer.read(code, FIRST.encode()).status for code in DoorCode} == {3}
    newer.close()
    for generation in GENERATIONS.values():
        with pytest.raises(ShardError) as caught:
            decode_legacy(DoorCode.POLL_RANGE, FIRST.encode(), generation)
        assert caught.value.status is Status.INVALID_COMMAND


def test_checks_keep_their_order(workers: Workers, root: Identity, plain: Identity) -> None:
    stranger, topic = Identity(None), requests.TopicRequest("s", "t").encode()
    for door in ("", "http"):
        assert status(workers, stranger, Code.GET_TOPIC, topic[:-1], door) is Status.INVALID_COMMAND
        assert status(workers, stranger, Code.GET_TOPIC, topic, door) is Status.UNAUTHENTICATED
        assert status(workers, plain, Code.CREATE_USER, bytes(4097), door) is Status.UNAUTHORIZED
        assert status(workers, root, Code.CREATE_USER, bytes(4097), door) is Status.INVALID_FORMAT
        assert status(workers, plain, Code.CREATE_USER, bytes(4096), door) is Status.INVALID_FORMAT
    assert run(workers, stranger, Code.PING) == b""


def test_a_send_is_read_as_it_was_written() -> None:
    for partitioning in (Partitioning(PartitioningKind.BALANCED), TO_THE_PARTITION, keyed(b"key")):
        sent = SendMessages.of("s", 7, partitioning, [NewMessage(b"one", b"head", 5, 6)])
        assert decode(Code.SEND_MESSAGES, memoryview(sent.encode()), "http") == sent


def keyed(key: bytes) -> Partitioning:
    return Partitioning(PartitioningKind.KEY, key=key)


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        (b"\1\0\0", 3),
        (b"\5\0\0\0\1", 3),
        (b"\2\0\0\0\3\1", 6),
        (b"\2\0\0\0\1\3", 6),
        (b"\x06\0\0\0\x01\x04\0\0\0\0", 6),
        (b"\x0e\0\0\0" + 2 * b"\x01\x04\0\0\0\0" + b"\x04\0", 3),
        (b"\x0e\0\0\0" + 2 * b"\x01\x04\0\0\0\0" + b"\x03\0", 3),
        (b"\x0e\0\0\0" + 2 * b"\x01\x04\0\0\0\0" + b"\x02\0", 3),
        (b"\x0f\0\0\0" + 2 * b"\x01\x04\0\0\0\0" + b"\x01\x01x", 3),
        (b"\x0e\0\0\0" + 2 * b"\x01\x04\0\0\0\0" + b"\x01\0", 3),
    ],
)
def test_a_send_that_is_cut_or_names_nothing_is_refused(payload: bytes, wanted: int) -> None:
    with pytest.raises(ShardError) as caught:
        decode(Code.SEND_MESSAGES, payload, "http")
    assert caught.value.status == wanted
