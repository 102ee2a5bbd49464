"""An address has its share of the connections of gRPC: what comes beyond is shut down, what is there stays, and no
other socket of the process is touched."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shardd.doors.liftbridge import connection_shares
from shardd.doors.liftbridge.connection_shares import ConnectionShares
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
    assert shares._judge(ends[1].fileno(), "socket:[1]", None, Counter(), set()) is None
    assert is_open(ends) and shares.closed == 0
    assert shares._judge(1_000_000, "socket:[1]", None, Counter(), set()) is None


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
async def test_thousands_of_calls_that_are_refused_shut_out_too(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_shares, "REFUSED_MAX", 10)
    shares = ConnectionShares(accepting.port, 100, 50)
    ends, other = accepting.connect(), accepting.connect("127.0.0.2")
    host, port = ends[0].getsockname()
    for _ in range(2):  # nine between two looks are no flood
        for _ in range(9):
            shares.refused(f"{host}:{port}")
        assert await shares.look() == 2
    for _ in range(10):
        shares.refused(f"{host}:{port}")
    assert await shares.look() == 1 and not is_open(ends) and is_open(other)


@on_loop
async def test_address_has_too_many_calls_without_a_login_its_strangers_that_sent_much_are_shut_down(
    accepting: Accepting,
) -> None:
    shares = ConnectionShares(accepting.port, 100, 50)
    loud, little, user, other = (
        accepting.connect(), accepting.connect(), accepting.connect(), accepting.connect("127.0.0.2")
    )  # fmt: skip
    addresses = ["{}:{}".format(*client.getsockname()) for client, _ in (loud, little, user, other)]
    for address in addresses:
        shares.called(address)
    shares.logged_in(addresses[2])
    assert await shares.look() == 4
    assert shares.has_login(addresses[2]) and not shares.has_login(addresses[0])
    for client, _ in (loud, user, other):
        client.sendall(b"x" * (connection_shares.STRANGER_BYTES_MAX + 1))
    assert await shares.look() == 4, "nobody of them is too many"
    shares.beyond("127.0.0.1")
    await shares.look()
    assert await shares.look() == 3 and shares.closed == 1
    assert all(map(is_open, (little, user, other))) and not is_open(loud)


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
