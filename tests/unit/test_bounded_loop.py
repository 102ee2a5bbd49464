"""A turn of a door's loop is bounded in events and callbacks, and nobody waits for longer than a round."""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
from contextlib import ExitStack

import pytest

from shardd.runtime.bounded_loop import (
    ACCEPTS_MAX,
    CALLBACKS_MAX,
    EVENTS_MAX,
    READ_BYTES_MAX,
    TURN_S,
    BoundedLoop,
    BoundedSelector,
    Progress,
)


def readable(held: ExitStack, selector: BoundedSelector, count: int) -> list[int]:
    """So many sockets that always have something."""
    fds = []
    for _ in range(count):
        one, other = socket.socketpair()
        held.enter_context(one)
        held.enter_context(other)
        other.send(b"x")
        selector.register(one, selectors.EVENT_READ)
        fds.append(one.fileno())
    return fds


def test_a_turn_takes_so_many_events_and_all_sockets_have_their_place_in_a_round() -> None:
    with ExitStack() as held:
        selector = held.enter_context(BoundedSelector(Progress(), lambda: 0.0))
        fds = readable(held, selector, 3 * EVENTS_MAX)
        told: list[int] = []
        for _ in range(3):
            turn = [key.fd for key, _ in selector.select(0)]
            assert len(turn) == EVENTS_MAX
            told += turn
        assert sorted(told) == sorted(fds)


def test_after_a_turn_of_costly_events_the_next_takes_half_as_many() -> None:
    now_s = 0.0
    with ExitStack() as held:
        selector = held.enter_context(BoundedSelector(Progress(), lambda: now_s))
        readable(held, selector, 2 * EVENTS_MAX)
        counts = []
        for _ in range(10):
            counts.append(len(selector.select(0)))
            now_s += 2 * TURN_S
        assert counts == [64, 32, 16, 8, 4, 2, 1, 1, 1, 1]
        for _ in range(EVENTS_MAX):
            counts.append(len(selector.select(0)))
        assert counts[-1] >= EVENTS_MAX - 2


def test_long_turns_of_a_door_that_serves_are_counted_and_told_when_they_double(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s, progress = 0.0, Progress()
    with caplog.at_level("INFO"), BoundedSelector(progress, lambda: now_s) as selector:
        for turn_ms in (500, 9, 15, 20, 31, 40, 70):
            selector.select(0)
            now_s += turn_ms / 1000
            progress.is_watched = turn_ms != 500 or progress.is_watched
        selector.select(0)
    assert progress.long_turns == 5
    told = [re.findall(r"\d+", record.getMessage()) for record in caplog.records]
    assert told == [["15", "10", "1"], ["31", "10", "3"], ["70", "10", "5"]]


def test_each_turn_moves_the_progress() -> None:
    progress = Progress()
    with BoundedSelector(progress, lambda: 0.0) as selector:
        for count in range(1, 4):
            selector.select(0)
            assert progress.count == count


def test_callbacks_that_are_ready_keep_their_order_over_many_turns() -> None:
    progress, ran, turns = Progress(), list[int](), list[int]()
    loop = BoundedLoop(BoundedSelector(progress))

    async def main() -> None:
        done = asyncio.Event()
        for number in range(10 * CALLBACKS_MAX):
            loop.call_soon(ran.append, number)
            loop.call_soon(turns.append, progress.count)
        loop.call_soon(done.set)
        before = progress.count
        await done.wait()
        assert progress.count - before >= 10

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    assert ran == sorted(ran) and len(ran) == 10 * CALLBACKS_MAX


def test_what_a_stranger_sends_comes_in_parts() -> None:
    """Of asyncio's transports and of its TLS: the names that are set."""
    from asyncio import selector_events, sslproto

    assert selector_events._SelectorSocketTransport.max_size > READ_BYTES_MAX  # type: ignore[attr-defined]
    assert sslproto.SSLProtocol.max_size >= READ_BYTES_MAX


def test_many_connections_wait_at_a_listener_a_turn_takes_a_bounded_number_of_them() -> None:
    """asyncio would take all 64 in the turn of the first, before any of them was made known."""
    loop = BoundedLoop(BoundedSelector(Progress()))
    turns = 0
    made: list[int] = []  # the turn in which each was made known

    class Known(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(turns)
            transport.close()

    async def taken(listener: socket.socket) -> None:
        nonlocal turns
        server = await loop.create_server(Known, sock=listener, backlog=64)
        while len(made) < 64 and turns < 10_000:
            turns += 1
            await asyncio.sleep(0)
        server.close()

    with ExitStack() as held:
        held.callback(loop.close)
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        for _ in range(64):
            held.enter_context(socket.create_connection(listener.getsockname()))
        loop.run_until_complete(taken(listener))
    assert len(made) == 64
    assert len(set(made)) >= 64 // ACCEPTS_MAX
