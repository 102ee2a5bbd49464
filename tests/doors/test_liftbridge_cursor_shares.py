"""Cursors of one user leave room for others, whatever becomes of its account
(docs/adr/0137-cursors-have-owners.md). Most of the cursors are written into their log before the door reads it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from shardd.doors.liftbridge.cursor_table import Cursor
from shardd.doors.liftbridge.cursors import CURSORS_MAX, STREAM, encoded
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.protocol.permissions import Permissions
from tests.doors.liftbridge_server import LiftbridgeClient, LiftbridgeServer
from tests.server.test_revocation import delete_user
from tests.server.test_supervisor import wait_until
from tests.support import wire

READER = Permissions(poll_messages=True)
HOME = "liftbridge-default"
BATCH = 1_000
FULL = "INTERNAL"


def record(cursor: str, owner: int, used_us: int) -> bytes:
    """As the door writes them; without an owner as earlier versions did."""
    message = encoded(Cursor("s", 0, cursor), 7)
    headers = {"shardd.owner": owner, "shardd.used_us": used_us} if owner else {}
    parts = [("lb.key", message.key), *((name, b"%d" % number) for name, number in headers.items())]
    return wire.message(message.value, b"".join(header(name, value) for name, value in parts))


def header(name: str, value: bytes) -> bytes:
    return struct.pack("<BI", 2, len(name)) + name.encode() + struct.pack("<BI", 1, len(value)) + value


def add_cursors(server: LiftbridgeServer, records: Iterable[bytes]) -> None:
    """The next door finds them."""
    some = [*records]
    with wire.connect(server.address) as root:
        for at in range(0, len(some), BATCH):
            root.send(HOME, STREAM, wire.to_partition(0), some[at : at + BATCH])
    door = server.door()
    door.kill()
    server.door(other_than=door.pid)


def set_cursor(client: LiftbridgeClient, cursor: str, offset: int = 3) -> str:
    return client.status("SetCursor", stream="s", cursorId=cursor, offset=offset)[0]


def cursor_of(client: LiftbridgeClient, cursor: str) -> int:
    return int(client.call("FetchCursor", stream="s", cursorId=cursor).offset)


def owner_of(data: Path, name: str) -> int:
    state = load_state(data / FILE_NAME)
    return state.users[state.user_ids[name]].incarnation


def root_of(server: LiftbridgeServer) -> LiftbridgeClient:
    return server.logged_in("iggy", "iggy")


def test_one_reader_cannot_take_every_cursor_and_its_cursors_make_room_when_it_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiftbridgeServer(data) as server:
        for name in ("greedy", "other"):
            server.create_user(name, READER)
        greedy_has = CURSORS_MAX // 2
        begun_us = 1_700_000_000 * 10**6
        owner = owner_of(data, "greedy")
        some = [record(f"g{number}", owner, begun_us + number) for number in range(greedy_has)]
        add_cursors(server, some + [record(f"old{number}", 0, 0) for number in range(greedy_has - 1)])
        with server.logged_in("greedy") as greedy, server.logged_in("other") as other, root_of(server) as root:
            while (refused := set_cursor(greedy, "more")) == "OK":
                assert set_cursor(other, "first") == "OK", "the reader has taken what was left"
            assert refused == FULL
            assert set_cursor(other, "first") == "OK"
            assert set_cursor(root, "second") == FULL  # there is no place, and each cursor counts
            assert set_cursor(greedy, "g0") == "OK"  # those that have one go on
            assert cursor_of(greedy, "g3") == 7
            with wire.connect(server.address) as classic:
                delete_user(classic, "greedy")
            assert [cursor_of(other, f"g{number}") for number in range(4)] == [3, 7, 7, 7]  # the ones used last
            assert set_cursor(other, "second") == "OK"
            assert [cursor_of(root, f"g{number}") for number in range(3, 6)] == [7, -1, 7]
            wait_until(lambda: "cursors of deleted users removed" in server.log(), "the log tells")
        server.stop()
        server.start()
        with server.logged_in("other") as other, root_of(server) as root:
            assert [cursor_of(other, name) for name in ("first", "second", "g4", "g6")] == [3, 3, -1, 7]
            assert set_cursor(root, "third") == "OK"
            assert [cursor_of(root, name) for name in ("first", "second", "third", "g0", "g3", "g7")] == [
                3,
                3,
                3,
                3,
                7,
                -1,
            ]


def test_a_new_account_goes_on_where_the_job_of_a_deleted_one_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiftbridgeServer(data) as server:
        server.create_user("job", READER)
        with server.logged_in("job") as job:
            assert set_cursor(job, "position", 41) == "OK"
        with wire.connect(server.address) as classic:
            delete_user(classic, "job")
        server.stop()
        server.start()
        server.create_user("job", READER)
        with server.logged_in("job") as job:
            assert cursor_of(job, "position") == 41
            assert set_cursor(job, "position", 42) == "OK"
        with server.client() as reader, reader.subscribe(STREAM, startPosition=2) as log:
            first, second = log.messages(2)
            assert int(first.headers["shardd.owner"]) != int(second.headers["shardd.owner"]) == owner_of(data, "job")
