"""Which line of calls a connection comes to: asked of the kernel, with as many listeners as there are lines."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from shardd.doors.liftbridge import call_lines
from shardd.doors.liftbridge.call_lines import (
    HOSTS_MAX,
    KNOWN,
    LINES,
    LOUD,
    LOUD_S,
    STRANGERS,
    CallLines,
    line_options,
    program,
)
from shardd.doors.liftbridge.calls import Context
from tests.support.on_loop import on_loop

WAIT_S = 10.0
INSTRUCTIONS_MAX = 4_096  # BPF_MAXINSNS


class Listening:
    """One socket for each line at a port, in the order in which they began to listen."""

    def __init__(self, held: ExitStack) -> None:
        self.held = held
        self.sockets = [held.enter_context(socket.socket(socket.AF_INET6)) for _ in range(LINES)]
        self.port = 0
        for each in self.sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            each.bind(("::", self.port))
            each.listen()
            self.port = each.getsockname()[1]

    def line_of(self, host: str) -> int:
        """Where a new connection from there comes to."""
        to = "::1" if ":" in host else "127.0.0.1"
        with socket.create_connection((to, self.port), WAIT_S, source_address=(host, 0)):
            came, _, _ = select.select(self.sockets, [], [], WAIT_S)
            assert len(came) == 1
            came[0].accept()[0].close()
            return self.sockets.index(came[0])


@pytest.fixture
def listening() -> Iterator[Listening]:
    with ExitStack() as held:
        yield Listening(held)


@on_loop
async def test_addresses_that_are_known_loud_and_new_have_lines_of_their_own(listening: Listening) -> None:
    lines = CallLines(listening.port)
    lines.begin()
    assert lines.is_steering
    strangers = {listening.line_of(f"127.0.0.{number}") for number in range(1, 30)}
    assert strangers == {*STRANGERS}
    known = [f"127.0.1.{number}" for number in range(1, 1 + len(KNOWN))]
    for host in known:
        lines.known(host)
    lines.loud("127.0.0.3")
    lines.loud(known[0])
    lines.renew()
    assert [listening.line_of(host) for host in known] == [LOUD, *KNOWN[1:]]
    assert listening.line_of("127.0.0.3") == LOUD
    assert listening.line_of("127.0.0.4") in STRANGERS


@on_loop
async def test_address_is_quiet_again_it_comes_to_the_line_it_had(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = CallLines(listening.port)
    lines.begin()
    lines.known("127.0.1.1")
    lines.loud("127.0.1.1")
    lines.renew()
    assert listening.line_of("127.0.1.1") == LOUD
    loop = asyncio.get_running_loop()
    later_s = loop.time() + LOUD_S + 1
    monkeypatch.setattr(loop, "time", lambda: later_s)
    lines.renew()
    monkeypatch.undo()
    assert listening.line_of("127.0.1.1") == KNOWN[0]


@pytest.mark.parametrize("host", ["127.0.0.9", "::1"], ids=["ipv4", "ipv6"])
@on_loop
async def test_program_has_as_many_addresses_as_it_may_the_kernel_takes_it(listening: Listening, host: str) -> None:
    lines = CallLines(listening.port)
    network = "::/64" if ":" in host else host
    lines.begin()
    for number in range(HOSTS_MAX - 1):
        lines.known(f"2001:db8:0:{number:x}::/64")
        lines.loud(f"2001:db8:1:{number:x}::/64")
    lines.loud(network)
    lines.renew()
    assert lines.is_steering and listening.line_of(host) == LOUD
    most = {f"2001:db8:{number:x}::/64": LOUD for number in range(2 * HOSTS_MAX)}
    assert len(program(most)) <= INSTRUCTIONS_MAX


@on_loop
async def test_kernel_takes_no_program_it_is_said_once_and_connections_come(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_lines, "_ATTACH", 0x7FFF)
    lines = CallLines(listening.port)
    lines.begin()
    for number in range(3):
        lines.known(f"127.0.1.{number}")
        lines.renew()
    assert not lines.is_steering and len(caplog.records) == 1
    assert listening.line_of("127.0.0.1") in range(LINES)


@on_loop
async def test_kernel_has_room_for_few_addresses_the_loud_and_the_last_known_have_lines(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where net.core.optmem_max is 20480."""
    attach = call_lines.attach

    def little_room(listener: socket.socket, code: Sequence[call_lines.Instruction]) -> None:
        if len(code) > 400:
            raise OSError(errno.ENOMEM, "no room")
        attach(listener, code)

    monkeypatch.setattr(call_lines, "attach", little_room)
    lines = CallLines(listening.port)
    lines.begin()
    for number in range(HOSTS_MAX - 1):
        lines.known(f"2001:db8:0:{number:x}::/64")
    lines.known("127.0.1.1")
    lines.loud("127.0.0.3")
    lines.renew()
    assert lines.is_steering
    assert listening.line_of("127.0.0.3") == LOUD and listening.line_of("127.0.1.1") in KNOWN
    lines.loud("127.0.0.4")
    lines.renew()
    assert listening.line_of("127.0.0.4") == LOUD, "the next one is told, too"


@on_loop
async def test_kernel_takes_no_program_for_a_while_the_next_one_is_tried(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = CallLines(listening.port)
    lines.begin()
    with monkeypatch.context() as failing:
        failing.setattr(call_lines, "_ATTACH", 0x7FFF)
        lines.loud("127.0.0.3")
        lines.renew()
    loop = asyncio.get_running_loop()
    later_s = loop.time() + call_lines.AGAIN_S + 1
    monkeypatch.setattr(loop, "time", lambda: later_s)
    lines.renew()
    monkeypatch.undo()
    assert listening.line_of("127.0.0.3") == LOUD


@on_loop
async def test_more_addresses_are_in_use_than_have_lines_those_that_have_keep_them(listening: Listening) -> None:
    lines = CallLines(listening.port)
    lines.begin()
    lines.known("127.0.1.1")
    line = lines._known["127.0.1.1"].line
    for number in range(2 * HOSTS_MAX):
        lines.known(f"127.0.{2 + number // 200}.{1 + number % 200}")
    lines.renew()
    assert not lines._is_new and listening.line_of("127.0.1.1") == line
    assert listening.line_of("127.0.4.100") in STRANGERS


def test_connections_come_to_any_line_all_lines_are_alike() -> None:
    assert len({tuple(line_options(line, False)) for line in range(LINES)}) == 1
    assert len({tuple(line_options(line, True)) for line in range(LINES)}) == 3


@on_loop
async def test_connection_in_a_line_of_strangers_is_old_its_client_connects_again_and_its_calls_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_lines, "AGE_MS", 500)
    peers, go_on = set[str](), asyncio.Event()

    async def follow(_requests: object, context: Context) -> None:
        await context.write(b"begun")
        await go_on.wait()
        await context.write(b"later")

    async def ask(_requests: object, context: Context) -> bytes:
        peers.add(context.peer())
        return b""

    server = grpc.aio.server(options=line_options(STRANGERS[0], True))
    handlers: dict[str, Any] = {
        "Follow": grpc.stream_stream_rpc_method_handler(follow),
        "Ask": grpc.stream_unary_rpc_method_handler(ask),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls: Any = channel
        following = calls.unary_stream("/s/Follow")(b"")
        assert await following.read() == b"begun"
        until_s = asyncio.get_running_loop().time() + 60
        while len(peers) < 3:
            assert await calls.unary_unary("/s/Ask")(b"") == b""
            assert asyncio.get_running_loop().time() < until_s, "no connection is old"
        go_on.set()
        assert await following.read() == b"later"
    await server.stop(None)
