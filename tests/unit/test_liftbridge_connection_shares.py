"""An address has its share of the connections of gRPC: what comes beyond is shut down, what is there stays, and no
other socket of the process is touched."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from shardd.doors.liftbridge import connection_shares
from shardd.doors.liftbridge.connection_shares import ConnectionShares
from shardd.doors.liftbridge.descriptors import descriptors
from tests.support.on_loop import on_loop, until

SHARE = 5


class Accepting:
    """The library's side: it accepts, and reads what comes."""

    def __init__(self, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.held = ExitStack()
        dual = family == socket.AF_INET6
        place = ("::" if dual else "127.0.0.1", 0)
        self.listener = self.held.enter_context(socket.create_server(place, family=family, dualstack_ipv6=dual))
        self.port: int = self.listener.getsockname()[1]

    def connect(self, source: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
        """Both ends."""
        client = socket.create_connection(("127.0.0.1", self.port), source_address=(source, 0), timeout=10)
        self.held.enter_context(client)
        accepted = self.held.enter_context(self.listener.accept()[0])
        accepted.settimeout(10)
        return client, accepted


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["ipv4", "both families"])
def accepting(request: pytest.FixtureRequest) -> Iterator[Accepting]:
    made = Accepting(request.param)
    with made.held:
        yield made


def is_open(ends: tuple[socket.socket, socket.socket]) -> bool:
    client, accepted = ends
    try:
        client.sendall(b"!")
        while data := accepted.recv(65_536):  # behind what has come before
            if data.endswith(b"!"):
                return True
    except OSError:
        pass
    return False


def take_all() -> list[int]:
    """Every descriptor that is left."""
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    return taken


def address_of(ends: tuple[socket.socket, socket.socket]) -> str:
    return "{}:{}".format(*ends[0].getsockname())


@on_loop
async def test_what_comes_beyond_a_share_is_shut_down(accepting: Accepting) -> None:
    shares = ConnectionShares(accepting.port, 100, SHARE)
    first = [accepting.connect() for _ in range(SHARE - 1)]
    assert await shares.look() == SHARE - 1
    more = [accepting.connect() for _ in range(10)]
    other = accepting.connect("127.0.0.2")
    for _ in range(2):
        assert await shares.look() == SHARE + 1
    assert all(map(is_open, first)) and is_open(other), "those that were there, and those of others"
    assert sum(map(is_open, more)) == 1 and shares.closed == 9
    assert more[-1][0].recv(1) == b"", "its client hears of the end"
    for ends in first:
        for end in ends:
            end.close()
    assert await shares.look() == 2
    for client, accepted in more:
        client.close()
        accepted.close()
    assert await shares.look() == 1
    again = accepting.connect()
    assert await shares.look() == 2 and is_open(again)


@on_loop
async def test_other_sockets_of_the_process_are_not_counted(accepting: Accepting) -> None:
    elsewhere = Accepting()
    with elsewhere.held:
        others = [elsewhere.connect() for _ in range(2 * SHARE)]
        shares = ConnectionShares(accepting.port, 100, SHARE)
        assert await shares.look() == 0 and all(map(is_open, others))
        for left, right in [socket.socketpair() for _ in range(SHARE + 1)]:
            with left, right:
                assert await shares.look() == 0
        assert shares.closed == 0


@on_loop
async def test_a_descriptor_that_is_another_socket_by_now_is_left_alone(accepting: Accepting) -> None:
    """The library closes descriptors, and the system gives their numbers to others, while they are looked at."""
    shares = ConnectionShares(accepting.port, 100, 0)
    ends = accepting.connect()
    assert shares._judge(ends[1].fileno(), "socket:[1]", None, Counter(), set(), {}) is None
    assert is_open(ends) and shares.closed == 0
    assert shares._judge(1_000_000, "socket:[1]", None, Counter(), set(), {}) is None


@on_loop
async def test_who_sends_much_and_calls_nothing_is_shut_out_for_a_while(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_shares, "BEFORE_CALL_BYTES_MAX", 1_000)
    shares = ConnectionShares(accepting.port, 100, 50)
    quiet, calls, loud = accepting.connect(), accepting.connect(), accepting.connect()
    other = accepting.connect("127.0.0.2")
    host, port = calls[0].getsockname()
    shares.called(f"{host}:{port}")
    assert await shares.look() == 4
    calls[0].sendall(b"x" * 2_000)
    for _ in range(3):
        assert await shares.look() == 4, "who calls may send"
    for ends in (loud, other):
        ends[0].sendall(b"x" * (2_000 if ends is not other else 900))
    deadline = asyncio.get_running_loop().time() + 10
    while not shares.closed:
        assert asyncio.get_running_loop().time() < deadline
        await shares.look()
    while await shares.look() != 1:  # all of the address
        assert asyncio.get_running_loop().time() < deadline
    assert not any(map(is_open, (quiet, calls, loud))) and is_open(other)
    again = accepting.connect()
    await shares.look()
    assert not is_open(again)
    shares._shut_out.clear()  # the time is over
    again = accepting.connect()
    assert await shares.look() == 2 and is_open(again)


@on_loop
async def test_who_has_called_and_sent_much_before_the_first_look_may_send(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_shares, "BEFORE_CALL_BYTES_MAX", 1_000)
    shares = ConnectionShares(accepting.port, 100, 50)
    ends = accepting.connect()
    ends[0].sendall(b"x" * 2_000)
    host, port = ends[0].getsockname()
    shares.called(f"{host}:{port}")
    assert await shares.look() == 1
    assert not shares.closed and is_open(ends)


@on_loop
async def test_an_address_is_shut_out_at_once_by_whoever_knows(accepting: Accepting) -> None:
    shares = ConnectionShares(accepting.port, 100, 50)
    ends, other = accepting.connect(), accepting.connect("127.0.0.2")
    working = asyncio.create_task(shares.run())
    host, port = ends[0].getsockname()
    shares.called(f"{host}:{port}")
    await asyncio.sleep(0.01)
    shares.shut_out(f"{host}:{port}")
    await until(lambda: shares.closed == 1)
    assert not is_open(ends) and is_open(other)
    working.cancel()


@on_loop
async def test_thousands_of_calls_that_are_refused_end_their_connection_alone(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_shares, "REFUSED_MAX", 10)
    shares = ConnectionShares(accepting.port, 100, 50)
    ends, beside, other = accepting.connect(), accepting.connect(), accepting.connect("127.0.0.2")
    for _ in range(2):  # nine between two looks are no flood
        for _ in range(9):
            shares.refused(address_of(ends))
        assert await shares.look() == 3
    for _ in range(10):
        shares.refused(address_of(ends))
    await shares.look()
    assert await shares.look() == 2 and not is_open(ends) and is_open(beside) and is_open(other)


@on_loop
async def test_address_has_too_many_calls_without_a_login_its_strangers_that_sent_much_are_shut_down(
    accepting: Accepting,
) -> None:
    shares = ConnectionShares(accepting.port, 100, 50)
    loud, little, user, waits, balancer = (accepting.connect() for _ in range(5))
    silent, other = accepting.connect(), accepting.connect("127.0.0.2")
    addresses = list(map(address_of, (loud, little, user, waits, balancer, other)))
    for address in addresses:
        shares.called(address)
    shares.logged_in(addresses[2])
    shares.is_at_work = lambda address: shares.has_login(address) or address == addresses[3]
    shares.was_refused = {addresses[0], addresses[1], addresses[2]}.__contains__
    assert await shares.look() == 7
    assert shares.has_login(addresses[2]) and not shares.has_login(addresses[0])
    for client, _ in (loud, user, waits, balancer, silent, other):
        client.sendall(b"x" * (connection_shares.STRANGER_BYTES_MAX + 1))
    assert await shares.look() == 7, "nobody of them is too many"
    shares.beyond("127.0.0.1")
    await shares.look()
    assert await shares.look() == 5 and shares.closed == 2
    assert all(map(is_open, (little, user, waits, balancer, other)))
    assert not is_open(loud) and not is_open(silent)


@on_loop
async def test_strangers_have_a_part_of_all_connections_the_longest_held_ends(accepting: Accepting) -> None:
    shares = ConnectionShares(accepting.port, 8, 8)
    user = accepting.connect()
    shares.logged_in("{}:{}".format(*user[0].getsockname()))
    assert await shares.look() == 1
    first = accepting.connect()
    assert await shares.look() == 2
    other = accepting.connect("127.0.0.2")
    later = [accepting.connect() for _ in range(4)]
    assert await shares.look() == 7
    assert await shares.look() == 7, "six strangers are three quarters of eight"
    newcomer = accepting.connect("127.0.0.2")
    for _ in range(2):
        await shares.look()
    assert not is_open(first) and all(map(is_open, (user, other, newcomer, *later)))


@on_loop
async def test_login_comes_before_the_look_that_would_end_its_connection_it_stays(accepting: Accepting) -> None:
    shares = ConnectionShares(accepting.port, 100, 50)
    late, stranger = accepting.connect(), accepting.connect()
    assert await shares.look() == 2
    for ends in (late, stranger):
        shares.end_stranger(address_of(ends))
    shares.logged_in(address_of(late))
    await shares.look()
    assert await shares.look() == 1 and is_open(late) and not is_open(stranger)


@on_loop
async def test_login_comes_within_the_look_that_would_end_its_connection_it_stays(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = ConnectionShares(accepting.port, 100, 50)
    late, stranger = accepting.connect(), accepting.connect()
    assert await shares.look() == 2
    for ends in (late, stranger):
        shares.end_stranger(address_of(ends))

    def others_have_a_turn() -> list[str]:
        shares.logged_in(address_of(late))
        return descriptors()

    monkeypatch.setattr(connection_shares, "descriptors", others_have_a_turn)
    await shares.look()
    assert await shares.look() == 1 and is_open(late) and not is_open(stranger)


@on_loop
async def test_strangers_have_more_than_their_part_those_that_wait_for_their_login_stay(accepting: Accepting) -> None:
    shares = ConnectionShares(accepting.port, 4, 8)
    waits = accepting.connect()
    shares.is_at_work = {address_of(waits)}.__contains__
    assert await shares.look() == 1
    others = [accepting.connect() for _ in range(4)]
    for _ in range(2):
        await shares.look()
    assert await shares.look() == 4 and is_open(waits) and sum(map(is_open, others)) == 3


@on_loop
async def test_all_lines_together_have_more_connections_than_may_be_the_rest_ends(
    accepting: Accepting,
) -> None:
    """The library has its bound for each line. Those that were there first stay."""
    shares = ConnectionShares(accepting.port, 300, 1_000)
    users = [accepting.connect() for _ in range(300)]
    for ends in users:
        shares.logged_in(address_of(ends))
    assert await shares.look() == 300
    strangers = [accepting.connect() for _ in range(10)]
    more = [accepting.connect() for _ in range(10)]
    for ends in more:
        shares.logged_in(address_of(ends))
    for _ in range(2):
        await shares.look()
    assert await shares.look() == 300 and all(map(is_open, users))
    assert not any(map(is_open, strangers)) and not any(map(is_open, more))


@on_loop
async def test_no_descriptor_is_left_connections_are_looked_at_and_shut_down_all_the_same(
    accepting: Accepting,
) -> None:
    shares = ConnectionShares(accepting.port, 2, 8)
    working = asyncio.create_task(shares.run())
    first = [accepting.connect() for _ in range(2)]
    for ends in first:
        shares.logged_in(address_of(ends))
    await until(lambda: len(shares._known) > 1 and all(map(shares.has_login, map(address_of, first))))
    more = [accepting.connect() for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + 40, hard))
    try:
        taken = take_all()
        try:
            await until(lambda: shares.closed >= 3)
        finally:
            for descriptor in taken:
                os.close(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(map(is_open, first)) and not any(map(is_open, more)) and not working.done()
    working.cancel()
