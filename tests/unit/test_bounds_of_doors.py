"""Bounds of the doors that no client meets by itself: times of the doors' own, answers above their bound, and how much
begins in one turn of the loop (docs/limits.md)."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc import StatusCode

from shardd.dispatch.door import requests
from shardd.dispatch.door.connection import BYTES_PER_TURN, STARTS_PER_TURN, DoorConnection
from shardd.doors import asgi
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.door import Door
from shardd.doors.hosts import AllowedHosts
from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.ingest import Ingest
from shardd.doors.liftbridge.losses import Loss, Losses
from shardd.doors.liftbridge.metadata_rpcs import NAMES_OF_REQUEST_MAX, MetadataRpcs
from shardd.doors.liftbridge.nats import audience as nats_audience
from shardd.doors.liftbridge.nats import link as nats_link
from shardd.doors.liftbridge.nats.audience import Audience, Subscription
from shardd.doors.liftbridge.nats.link import NatsLink
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.status import RpcError
from shardd.doors.quic import listener
from shardd.doors.quic.connection import HANDSHAKE_S, ClientConnection
from shardd.doors.quic.listener import Listener
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.api_messages import FetchMetadataRequest
from shardd.protocol.nats import NatsError
from tests.doors.nats_peers import linked
from tests.support.on_loop import on_loop, until
from tests.unit.test_liftbridge_ingest import View
from tests.unit.test_liftbridge_nats_audience import Ear

WAIT_S = 30.0


def test_answer_of_a_door_above_half_of_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requests._answer(b"x" * 40)
    monkeypatch.setattr(requests, "ANSWER_BYTES_MAX", 100)
    assert requests._answer(b"x" * 40)
    with pytest.raises(ShardError) as refused:
        requests._answer(b"x" * 60)
    assert refused.value.status == Status.CANNOT_SERIALIZE_RESOURCE


class Pump:
    """What a connection of a door has to begin, and in which turn of the loop it began how many."""

    def __init__(self, sizes: list[int]) -> None:
        self._frames = SimpleNamespace(take=lambda: SimpleNamespace(size=sizes.pop(0)) if sizes else None)
        self._loop = asyncio.get_running_loop()
        self._ended = self._stopping = self._pumping = False
        self.door = "door"
        self.began: Counter[int] = Counter()
        self.turn = 0

    def _has_room(self) -> bool:
        return True

    def _begin(self, frame: Any) -> None:
        self.began[self.turn] += 1

    def _read_or_not(self) -> None:
        pass

    def _pump_again(self) -> None:
        self.turn += 1
        self._pumping = False
        DoorConnection._pump(cast(DoorConnection, self))


async def began_of(sizes: list[int]) -> list[int]:
    pump = Pump(sizes)
    DoorConnection._pump(cast(DoorConnection, pump))
    await until(lambda: not sizes and not pump._pumping)
    return [*pump.began.values()]


@on_loop
async def test_requests_of_a_door_begin_so_many_in_a_turn() -> None:
    small = await began_of([100] * (2 * STARTS_PER_TURN + 3))
    assert small == [STARTS_PER_TURN, STARTS_PER_TURN, 3]
    assert await began_of([BYTES_PER_TURN // 2] * 5) == [2, 2, 1]
    assert await began_of([2 * BYTES_PER_TURN] * 2) == [1, 1]


def test_handshake_of_quic_that_does_not_end_is_closed() -> None:
    ended: list[Status] = []
    server = SimpleNamespace(partial_frame_timeout_ms=30_000, slow_reader_timeout_ms=30_000)
    options = SimpleNamespace(server=server, quic=SimpleNamespace(keep_alive_interval_ms=0))
    connection = SimpleNamespace(
        _gone=False,
        _unread={},
        _requests={},
        _shared=SimpleNamespace(options=options),
        _client=None,
        _came_at_s=100.0,
        _moved_at_s=100.0,
        end=ended.append,
    )
    ClientConnection.look(cast(ClientConnection, connection), 100.0 + HANDSHAKE_S - 0.1)
    assert not ended
    ClientConnection.look(cast(ClientConnection, connection), 100.0 + HANDSHAKE_S)
    assert ended == [Status.DISCONNECTED]


def test_datagrams_of_quic_that_the_kernel_does_not_take_are_lost() -> None:
    sent: list[bytes] = []
    waiting = 0
    shared = Listener.__new__(Listener)
    shared._transport = cast(
        Any, SimpleNamespace(get_write_buffer_size=lambda: waiting, sendto=lambda data, to: sent.append(data))
    )
    for waiting in (0, listener.UNSENT_BYTES_MAX - 1, listener.UNSENT_BYTES_MAX, 2 * listener.UNSENT_BYTES_MAX):
        shared.sendto(b"%d" % waiting, ("::1", 1))
    assert sent == [b"0", b"%d" % (listener.UNSENT_BYTES_MAX - 1)]


@on_loop
async def test_messages_that_a_nats_server_does_not_take_are_counted_and_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_link, "UNSENT_BYTES_MAX", 1_000)
    losses = Losses()
    link = NatsLink(cast(Door, None), linked("nats://127.0.0.1:1").nats, Ingest(View(), Publisher(9), 9, losses))
    link._nats = cast(Any, SimpleNamespace(max_payload=1_000))
    for _ in range(10):
        link._send("s", bytes(299), Loss.ACKS)
    assert len(link._out) == 3 and link._out_bytes == 900 and losses.counts == {Loss.ACKS: 7}


@on_loop
async def test_requests_under_way_at_the_end_of_a_door_are_cancelled_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "STOP_S", 1)
    began, cancelled, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def application(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        hosts = AllowedHosts("http.allowed_hosts", (), listening)
        serving = asyncio.ensure_future(asgi.serve_app(application, hosts, listening, AsgiLimits(), ready.set))
        async with asyncio.timeout(WAIT_S):
            await ready.wait()
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await began.wait()
            serving.cancel()
            await asyncio.wait([serving])
            await cancelled.wait()
            writer.close()


@on_loop
async def test_metadata_of_too_many_names_is_refused() -> None:
    call = cast(Call, SimpleNamespace(line=("u",)))
    for streams, groups in ((NAMES_OF_REQUEST_MAX + 1, 0), (0, NAMES_OF_REQUEST_MAX + 1)):
        with pytest.raises(RpcError) as refused:
            await MetadataRpcs(*[cast(Any, None)] * 4).fetch(
                call, FetchMetadataRequest(streams=["s"] * streams, groups=["g"] * groups)
            )
        assert refused.value.code is StatusCode.INVALID_ARGUMENT


@on_loop
async def test_users_together_leave_subscriptions_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_audience, "SUBSCRIPTIONS_MAX", 64)
    monkeypatch.setattr(nats_audience, "SUBSCRIPTIONS_PER_USER_MAX", 16)
    audience, had = Audience(Losses()), dict[int, list[Subscription]]()
    for user_id in range(6):
        had[user_id] = []
        with pytest.raises(NatsError):
            for number in range(17):
                each = Subscription(Ear(user_id), str(number), f"a.{number}", "")
                audience.add(each)
                had[user_id].append(each)
    assert [len(each) for each in had.values()] == [16, 16, 16, 8, 4, 2]
    for each in had[0]:
        audience.remove(each)
    audience.add(Subscription(Ear(5), "3", "a", ""))
