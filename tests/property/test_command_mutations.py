"""Every classic command, valid and with each field cut or wrong, against a running server: a status of the table, a
connection that goes on, and nothing changed by what was refused; and no reply tells a name that the matrix hides."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from tests.support import wire
from tests.support.commands import Command, World, commands, mutations
from tests.support.generated import examples
from tests.support.server import Server
from tests.support.wire import Wire

STATUSES = frozenset(int(status) for status in Status) - {int(Status.ERROR)}
CLOSING = frozenset({30, 100})
COUNTED_LOGINS = frozenset({37, 38, 44})  # their failures make later logins slower
COMMANDS = commands()
GUESSES = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def world(server: Server) -> Iterator[World]:
    with wire.connect(server.address) as root:
        found = World(root)
        found.rebuild()
        yield found


class Subject:
    """The connection that gets the requests; made anew when an answer has closed it, as it should be."""

    def __init__(self, server: Server, *, login: bool = True) -> None:
        self._server, self._login = server, login
        self.connection = self._connect()

    def _connect(self) -> Wire:
        return wire.connect(self._server.address) if self._login else Wire(self._server.address)

    def exchange(self, code: int, payload: bytes) -> int:
        """The status; the connection works afterwards."""
        status, reply = self.connection.exchange(code, payload)
        assert status in STATUSES
        assert status == 0 or reply == b""
        if status in CLOSING:
            with pytest.raises(OSError):
                self.connection.ping()
            self.close()
            self.connection = self._connect()
        self.connection.ping()
        if self._login and code == Code.LOGOUT_USER:
            self.connection.login()
        return status

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def subject(server: Server) -> Iterator[Subject]:
    found = Subject(server)
    yield found
    found.close()


def refused_changes_nothing(world: World, subject: Subject, command: Command, payload: bytes, before: bytes) -> int:
    status = subject.exchange(command.code, payload)
    if status != 0 and command.changes:
        assert world.fingerprint() == before, f"{command.name} was refused with {status} and changed something"
    elif command.changes:
        world.rebuild()
    if status in (20, 42) and command.code in COUNTED_LOGINS:
        world.root.login()
    return status


def test_all_47_commands_are_here() -> None:
    assert sorted(command.code for command in COMMANDS) == sorted(Code)
    assert sum(len(list(mutations(command))) for command in COMMANDS) > 800


def test_valid_requests_succeed(world: World, subject: Subject) -> None:
    world.rebuild()
    join = next(command for command in COMMANDS if command.code == Code.JOIN_CONSUMER_GROUP)
    for command in COMMANDS:
        if command.code == Code.LEAVE_CONSUMER_GROUP:
            subject.exchange(join.code, join.payload)
        wanted = 20 if command.code == Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN else 0
        assert subject.exchange(command.code, command.payload) == wanted, command.name
        if command.changes:
            world.rebuild()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_wrong_field_has_its_status_and_changes_nothing(world: World, subject: Subject, command: Command) -> None:
    world.rebuild()
    before = world.fingerprint()
    for mutation in mutations(command):
        status = refused_changes_nothing(world, subject, command, mutation.payload, before)
        assert mutation.statuses is None or status in mutation.statuses, f"{mutation.about}: {status}"
        if status == 0 and command.changes:
            before = world.fingerprint()


def test_without_a_login_malformed_requests_are_told_so_and_others_40(server: Server, world: World) -> None:
    world.rebuild()
    before, subject = world.fingerprint(), Subject(server, login=False)
    public = (Code.PING, Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN)
    for command in COMMANDS:
        if command.code in public:
            continue
        assert subject.exchange(command.code, command.payload) == 40, command.name
        for mutation in mutations(command):
            status = subject.exchange(command.code, mutation.payload)
            assert status in {3, 4, 40}, f"{mutation.about}: {status}"
    subject.close()
    assert world.fingerprint() == before


@GUESSES
@given(st.data())
def test_any_bytes_in_a_field_are_survived(server: Server, world: World, data: st.DataObject) -> None:
    command = data.draw(st.sampled_from([command for command in COMMANDS if command.fields]))
    number = data.draw(st.integers(0, len(command.fields) - 1))
    fields = [field.data for field in command.fields]
    if data.draw(st.booleans()):
        fields[number] = data.draw(st.binary(max_size=len(fields[number]) + 8))
    else:
        at = data.draw(st.integers(0, len(fields[number]) - 1))
        fields[number] = fields[number][:at] + data.draw(st.binary(min_size=1, max_size=1)) + fields[number][at + 1 :]
    subject = Subject(server)
    try:
        refused_changes_nothing(world, subject, command, b"".join(fields), world.fingerprint())
    finally:
        subject.close()


# ---- what a user without rights is told

HIDDEN = b"hidden"


def hide(root: Wire) -> None:
    """Objects whose names must not be told, and an open stream beside them."""
    for stream, topics in (("hidden-stream", ("hidden-topic", "open-topic")), ("open-stream", ("open-topic",))):
        root.create_stream(stream)
        for topic in topics:
            root.create_topic(stream, topic, 1)
            place = wire.identifier(stream) + wire.identifier(topic)
            root.send(
                stream, topic, wire.to_partition(0), [wire.message(b"hidden-payload" if "hidden" in topic else b"m")]
            )
            group = "hidden-group" if "hidden" in topic else "open-group"
            root.request(Code.CREATE_CONSUMER_GROUP, place + wire.str8(group))
            root.store_offset(stream, topic, 0, 0, "hidden-consumer")
    root.request(Code.CREATE_USER, wire.str8("hidden-user") + wire.str8("secret") + b"\1\0")
    root.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, wire.str8("hidden-token") + bytes(8))


def permissions(streams: list[tuple[int, bytes, list[tuple[int, bytes]]]]) -> bytes:
    """A block without global rights (docs/protocol/primitives.md#permission-block): id and six flags of streams, id and
    four of their topics."""
    block = bytes(10) + bytes([bool(streams)])
    for at, (stream, flags, topics) in enumerate(streams, 1):
        block += struct.pack("<I", stream) + flags + bytes([bool(topics)])
        for inner, (topic, topic_flags) in enumerate(topics, 1):
            block += struct.pack("<I", topic) + topic_flags + bytes([inner < len(topics)])
        block += bytes([at < len(streams)])
    return b"\1" + struct.pack("<I", len(block)) + block


def readers(ids: dict[str, int]) -> dict[str, bytes]:
    """Permission parts of CREATE_USER: nothing at all, no right, the open stream, one topic of the hidden stream."""
    read_stream, read_topic = b"\0\1\0\0\1\0", b"\0\1\1\0"
    return {
        "nobody": b"\0",
        "no-right": permissions([]),
        "streamer": permissions([(ids["open-stream"], read_stream, [])]),
        "topical": permissions([(ids["hidden-stream"], bytes(6), [(1, read_topic)])]),
    }


def places() -> list[tuple[str | int, str | int]]:
    named = [(stream, topic) for stream in ("hidden-stream", "open-stream") for topic in ("hidden-topic", "open-topic")]
    return [*named, (0, 0), (0, 1), (1, 0), (4000, 0)]


def read_requests() -> Iterator[tuple[int, bytes]]:
    """Every command that tells something, on everything that there is, by name and by number."""
    for code in (10, 12, 20, 22, 32, 41, 201):
        yield code, b""
    yield 11, b"\1\1\x64"
    for user in ("hidden-user", 0, 1, 2, "iggy"):
        yield 31, wire.identifier(user)
    for client in range(3):
        yield 21, struct.pack("<I", client)
    for stream, topic in places():
        place = wire.identifier(stream) + wire.identifier(topic)
        for code, payload in (
            (200, wire.identifier(stream)),
            (301, wire.identifier(stream)),
            (300, place),
            (601, place),
        ):
            yield code, payload
        for group in ("hidden-group", "open-group", 0):
            yield 600, place + wire.identifier(group)
        reader = wire.consumer("hidden-consumer") + place + wire.optional_partition(0)
        yield 120, reader
        yield 100, reader + struct.pack("<BQIB", 3, 0, 10, 0)


def test_a_user_without_the_right_sees_no_hidden_name(server: Server, world: World) -> None:
    world.rebuild()
    world.root.delete_stream("st")
    hide(world.root)
    ids = world.root.streams()
    requests = list(read_requests())
    assert sum(HIDDEN in world.root.exchange(*request)[1] for request in requests) > 20, "root would be told"
    for user, rights in readers(ids).items():
        world.root.request(Code.CREATE_USER, wire.str8(user) + wire.str8("secret") + b"\1" + rights)
        with Wire(server.address) as connection:
            connection.login(user, "secret")
            told = 0
            for code, payload in requests:
                status, reply = connection.exchange(code, payload)
                assert HIDDEN not in reply, f"{user} is told by command {code}: {reply!r}"
                assert status in STATUSES
                told += bool(reply)
            # GET_ME, the cluster and the own user are for everybody
            assert told == 2 if user in ("nobody", "no-right") else told > 4, user
            for command in commands("hidden-stream", "hidden-topic", "hidden-group", "hidden-user"):
                if command.changes:
                    assert connection.exchange(command.code, command.payload)[1].find(HIDDEN) < 0
    world.rebuild()
