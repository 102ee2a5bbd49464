"""Users, tokens, snapshots and segments on two workers: what acts on open connections, and where (golden scenarios
`users`, `tokens`, `permissions-*`, `segments-delete` hold the answers byte by byte)."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from immutables import Map

from shardd.engine import owner
from shardd.metadata.commands import CreateToken
from shardd.protocol import account_requests
from shardd.protocol.account_requests import SnapshotCompression, SnapshotType
from shardd.protocol.codes import Code
from shardd.protocol.namespaces import namespace
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions, encode_permissions
from shardd.security.tokens import digest
from shardd.service import long_answers
from shardd.service.sessions import SessionTable
from shardd.service.snapshot_members import mask_secrets
from tests.support import wire
from tests.support.archives import archive_members
from tests.support.wire import Wire
from tests.unit.services_harness import Workers, moving

__all__ = ["moving"]  # a fixture
ALL_STREAMS = Permissions(manage_streams=True)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2, segment_size="5 KiB") as running:
        yield running


def create(root: Wire, name: str, permissions: Permissions | None = None) -> int:
    payload = account_requests.CreateUserRequest(name, "secret", 1, permissions).encode()
    return int(struct.unpack_from("<I", root.request(Code.CREATE_USER, payload))[0])


def delete(root: Wire, name: str) -> None:
    root.request(Code.DELETE_USER, account_requests.UserRequest(name).encode())


def snapshot(root: Wire, *types: SnapshotType, compression: SnapshotCompression) -> dict[str, str]:
    reply = root.request(Code.GET_SNAPSHOT, account_requests.GetSnapshot(compression, types).encode())
    return {name: content.decode() for name, content in archive_members(reply)}


@pytest.mark.parametrize("shard", [0, 1])
def test_a_deleted_user_can_do_nothing_more_whoever_gets_its_id(workers: Workers, shard: int) -> None:
    root = workers.connect(1 - shard)
    user_id = create(root, "leaver", ALL_STREAMS)
    connections = [workers.connect(shard, "leaver", "secret") for _ in range(3)]
    create_stream = wire.str8("never")
    delete(root, "leaver")
    assert create(root, "comer", ALL_STREAMS) == user_id
    for connection in connections:
        assert connection.status(Code.CREATE_STREAM, create_stream) == 41
        assert connection.status(Code.GET_STREAMS) == 41
        assert connection.status(Code.GET_PERSONAL_ACCESS_TOKENS) == 41
        token = account_requests.CreateTokenRequest("abc", 0).encode()
        assert connection.status(Code.CREATE_PERSONAL_ACCESS_TOKEN, token) == 41
        connection.ping()
    assert connections[0].status(Code.GET_ME) == 100
    assert connections[1].status(Code.LOGIN_USER, wire.str8("iggy") * 2 + bytes(8)) == 100
    assert connections[2].status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8("x")) == 100
    for connection in connections:
        with pytest.raises(OSError):
            connection.ping()
    listed = root.request(Code.GET_CLIENTS)
    assert struct.pack("<I", user_id) + b"\x01" not in listed
    delete(root, "comer")


@pytest.mark.parametrize("shard", [0, 1])
def test_rights_change_on_open_connections_before_the_change_is_answered(workers: Workers, shard: int) -> None:
    root = workers.connect(1 - shard)
    stream = root.create_stream("rights")
    root.create_topic(stream, "tp", 2)
    create(root, "sender")
    sender = workers.connect(shard, "sender", "secret")
    message = wire.batch(stream, "tp", wire.to_partition(0), [wire.message(b"one")])
    allowed = Permissions(streams=Map({stream: StreamPermissions(send_messages=True)}))
    for permissions, status in ((None, 41), (allowed, 0), (None, 41), (allowed, 0), (Permissions(), 41), (allowed, 0)):
        root.request(Code.UPDATE_PERMISSIONS, account_requests.UpdatePermissionsRequest("sender", permissions).encode())
        for _ in range(3):  # the route is warm after the first
            assert sender.status(Code.SEND_MESSAGES, message) == status
    root.delete_stream(stream)
    assert root.create_stream("later") == stream
    root.create_topic(stream, "tp", 2)
    assert sender.status(Code.SEND_MESSAGES, message) == 41, "rights never pass to a later stream with the same id"
    root.delete_stream(stream)
    delete(root, "sender")


def test_passwords_and_tokens_are_stored_as_hashes_only(workers: Workers) -> None:
    root = workers.connect(0)
    create(root, "holder")
    holder = workers.connect(1, "holder", "secret")
    text = holder.request(
        Code.CREATE_PERSONAL_ACCESS_TOKEN, account_requests.CreateTokenRequest("ci_token", 0).encode()
    )[1:]
    change = account_requests.ChangePasswordRequest("holder", "secret", "another one").encode()
    holder.request(Code.CHANGE_PASSWORD, change)
    assert len(text) == 68
    assert workers.anonymous(0).status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(text.decode())) == 0
    log = (workers.context().settings.system.data_directory / "state.messages").read_bytes()
    assert digest(text.decode()) in log and b"$argon2id$" in log
    assert text not in log and b"secret" not in log and b"another one" not in log
    delete(root, "holder")
    assert workers.anonymous(1).status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(text.decode())) == 20


def test_expired_tokens_are_refused_and_cleaned(tmp_path: Path) -> None:
    settings = {"personal_access_token.cleaner.interval": "200 ms"}
    with Workers(tmp_path / "data", settings=settings) as workers:
        root = workers.connect(0)
        context = workers.context()
        expires_at_us = time.time_ns() // 1000 + 150_000
        owner = workers.root_ref()
        workers.call(context.metadata.submit(owner, CreateToken(owner, "short", digest("short"), expires_at_us, 100)))
        login = wire.str8("short")
        assert workers.anonymous(0).status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login) == 0
        assert b"short" in root.request(Code.GET_PERSONAL_ACCESS_TOKENS)
        time.sleep(0.15)
        assert workers.anonymous(0).status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login) in (54, 20)
        deadline = time.monotonic() + 5
        while root.request(Code.GET_PERSONAL_ACCESS_TOKENS) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert root.request(Code.GET_PERSONAL_ACCESS_TOKENS) == b""
        assert workers.anonymous(0).status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login) == 20


def test_expired_tokens_do_not_count_against_the_limit(tmp_path: Path) -> None:
    settings = {"personal_access_token.max_tokens_per_user": "2", "personal_access_token.cleaner.enabled": "false"}
    with Workers(tmp_path / "data", settings=settings) as workers:
        root = workers.connect(0)

        def token(name: str, expiry_us: int) -> int:
            request = account_requests.CreateTokenRequest(name, expiry_us).encode()
            return root.status(Code.CREATE_PERSONAL_ACCESS_TOKEN, request)

        assert [token("short", 1000), token("long", 0)] == [0, 0]
        time.sleep(0.002)
        assert [token("third", 0), token("fourth", 0), token("long", 0)] == [0, 52, 52]
        listed = root.request(Code.GET_PERSONAL_ACCESS_TOKENS)
        assert b"long" in listed and b"third" in listed and b"short" not in listed


def test_snapshots_hold_what_was_asked_for(workers: Workers) -> None:
    root = workers.connect(1)
    data = workers.context().settings.system.data_directory
    (data / "runtime").mkdir(exist_ok=True)
    (data / "runtime" / "current_config.toml").write_text('[tcp]\naddress = "127.0.0.1:1"\npassword = "hunter2"\n')
    for compression in SnapshotCompression:
        members = snapshot(root, SnapshotType.TEST, compression=compression)
        assert members == {"test.txt": "test"}
    members = snapshot(root, SnapshotType.ALL, compression=SnapshotCompression.DEFLATED)
    assert sorted(members) == [
        "filesystem_overview.txt",
        "process_list.txt",
        "resource_usage.txt",
        "server_config.txt",
        "server_logs.txt",
    ]
    assert "state.messages" in members["filesystem_overview.txt"]
    assert "hunter2" not in members["server_config.txt"] and "127.0.0.1:1" in members["server_config.txt"]
    assert snapshot(root, compression=SnapshotCompression.STORED) == {}
    create(root, "nosy")
    assert workers.connect(0, "nosy", "secret").status(Code.GET_SNAPSHOT, bytes([1, 1, 4])) == 41
    delete(root, "nosy")


def test_secrets_are_masked() -> None:
    text = '[http.jwt]\nencoding_secret = "a"\nkey = "b"\nkey_file = "c"\nmax_tokens_per_user = 3\nurl = "http://u:pw@h/"\n'
    masked = mask_secrets(text)
    assert '"a"' not in masked and '"b"' not in masked and "pw" not in masked
    assert 'key_file = "c"' in masked and "max_tokens_per_user = 3" in masked


@pytest.mark.parametrize("shard", [0, 1])
def test_segments_are_deleted_by_their_owner(workers: Workers, shard: int) -> None:
    root = workers.connect(shard)
    stream = root.create_stream("segments")
    root.create_topic(stream, "tp", 3)
    for partition in range(3):
        for number in range(25):
            root.send(stream, "tp", wire.to_partition(partition), [wire.message(bytes([number]) * 936)])
        root.store_offset(stream, "tp", partition, 13)
    for partition in range(3):
        request = account_requests.DeleteSegments(stream, "tp", partition, 1)
        root.request(Code.DELETE_SEGMENTS, request.encode())
        before = root.partitions(stream, "tp")[partition]
        assert (before.segments_count, before.messages_count, before.current_offset) == (3, 18, 24)
        request = account_requests.DeleteSegments(stream, "tp", partition, 2**32 - 1)
        root.request(Code.DELETE_SEGMENTS, request.encode())
        assert root.partitions(stream, "tp")[partition].segments_count == 2, "the segment behind offset 13 stays"
        left = root.read_all(stream, "tp", partition)
        assert [message.offset for message in left] == list(range(14, 25))
        assert root.status(Code.DELETE_SEGMENTS, account_requests.DeleteSegments(stream, "tp", 9, 1).encode()) == 3007
    root.delete_stream(stream)


def test_a_deleted_user_is_forgotten_where_its_connection_has_moved_to(moving: Workers) -> None:
    root, _ = moving.connect(0), moving.connect(1)  # as many on both: the next one stays where it comes in
    stream = root.create_stream("moves")
    root.create_topic(stream, "tp", 8)
    user_id = create(root, "mover", ALL_STREAMS)
    mover = moving.connect(0, "mover", "secret")
    sessions = moving.context(1).sessions
    partition = next(each for each in range(8) if owner(namespace(stream, 0, each), 2) == 1)
    for _ in range(500):
        mover.send(stream, "tp", wire.to_partition(partition), [wire.message(b"one")])
        if sessions.of_user(user_id):
            break
    moved = sessions.of_user(user_id)[0]
    exported = sessions.export(moved.connection)
    delete(root, "mover")
    assert create(root, "other", ALL_STREAMS) == user_id
    message = wire.batch(stream, "tp", wire.to_partition(partition), [wire.message(b"two")])
    assert mover.status(Code.SEND_MESSAGES, message) == 41
    assert mover.status(Code.GET_ME) == 100
    # the same for a socket that is on its way while the user goes
    table = SessionTable()
    late = table.admit(1, moved.address, exported)
    current = moving.context(1).metadata.state.users[user_id]
    assert late.user_incarnation != current.incarnation
    root.delete_stream(stream)
    delete(root, "other")


def test_a_user_with_very_many_permissions_is_the_same_on_every_shard(workers: Workers) -> None:
    """Decoded, recorded and encoded in helper threads."""
    some = [TopicPermissions(*(bool(number >> bit & 1) for bit in range(4))) for number in range(16)]
    topics = Map({number: some[number % 16] for number in range(2000)})
    rights = Permissions(streams=Map({number: StreamPermissions(topics=topics) for number in range(3)}))
    for shard in (0, 1):
        root, name = workers.connect(shard), f"wide{shard}"
        made = root.request(Code.CREATE_USER, account_requests.CreateUserRequest(name, "secret", 1, rights).encode())
        assert made.endswith(encode_permissions(rights))
        changed = account_requests.UpdatePermissionsRequest(name, msgspec.structs.replace(rights, read_users=True))
        root.request(Code.UPDATE_PERMISSIONS, changed.encode())
        for other in (0, 1):
            found = workers.connect(other).request(Code.GET_USER, wire.identifier(name))
            assert found.endswith(encode_permissions(msgspec.structs.replace(rights, read_users=True)))
        root.request(Code.DELETE_USER, wire.identifier(name))


def test_tokens_are_listed_by_name_however_many(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "_SORTED_AT_ONCE", 2)
    root = workers.connect()
    names = [f"t{number:02}" for number in range(12)]
    for name in reversed(names):
        root.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, wire.str8(name) + bytes(8))
    listed = root.request(Code.GET_PERSONAL_ACCESS_TOKENS)
    places = [listed.index(wire.str8(name)) for name in names]
    assert places == sorted(places)
    for name in names:
        root.request(Code.DELETE_PERSONAL_ACCESS_TOKEN, wire.str8(name))
