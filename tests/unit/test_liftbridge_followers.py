"""Subscriptions that wait: a right or a login that is refused meanwhile is found out, whoever waits for them. A worker
that is replaced ends none."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, Final

import pytest
from grpc import StatusCode

from shardd.doors.liftbridge import followers as module
from shardd.doors.liftbridge.followers import Follower, Followers
from shardd.doors.liftbridge.partitions import Bounds
from shardd.doors.liftbridge.status import RpcError
from shardd.doors.liftbridge.subscribe_rpc import _Reading
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.positions import NO_STOP, Span
from shardd.protocol.liftbridge.requests import StreamInfo
from tests.support.on_loop import on_loop

STREAM: Final = StreamInfo("s", "sub", "", 1, 2, 3, 4, 1, {})
DENIALS: Final = [
    ShardError(Status.UNAUTHORIZED),
    ShardError(Status.UNAUTHENTICATED),
    RpcError(StatusCode.UNAUTHENTICATED, "no valid login"),
]
FOR_A_WHILE: Final = [
    WorkerLostError("gone"),
    ShardError(Status.SHARD_COMMUNICATION_ERROR),
    RpcError(StatusCode.UNAVAILABLE, "a part of the server is being restarted"),
]


async def doubts(error: Exception, *, at_worker: bool) -> bool:
    """Whether a subscription that waits finds out by a poll, when its waits are refused so."""

    async def refuse(*_: object) -> Any:
        raise error

    call: Any = SimpleNamespace(ask=refuse, login="somebody")
    partitions: Any = SimpleNamespace(bounds=refuse)
    followers, follower = Followers(partitions), Follower(call, STREAM, 0, 7)
    followers.add(follower)
    watching = asyncio.create_task(followers.watch())
    waiting = followers.wait(follower, follower.wakes) if at_worker else follower.wait(follower.wakes)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, 20)
    watching.cancel()
    assert follower.wakes
    return follower.is_in_doubt


@pytest.mark.parametrize("at_worker", [True, False], ids=["a worker waits", "the door looks"])
@pytest.mark.parametrize("error", DENIALS + FOR_A_WHILE, ids=str)
def test_refused_right_or_login_is_found_out_by_a_subscription_that_waits(
    error: Exception, at_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.01)

    @on_loop
    async def scenario() -> None:
        assert await doubts(error, at_worker=at_worker) is (error in DENIALS)

    scenario()


@pytest.mark.parametrize("error", DENIALS + FOR_A_WHILE, ids=str)
def test_subscription_goes_on_beside_a_worker_that_is_replaced_and_ends_with_its_right(error: Exception) -> None:
    async def refuse(*_: object) -> Any:
        raise error

    @on_loop
    async def scenario() -> None:
        call: Any = SimpleNamespace(method="Subscribe")
        partitions: Any = SimpleNamespace(poll=refuse)
        span = Span(start=0, stop=NO_STOP, ends_readonly=False)
        reading = _Reading(partitions, Follower(call, STREAM, 0, 7), span, Bounds(0, 7))
        if error in FOR_A_WHILE:
            assert await reading.read() == [] and reading.again
            return
        with pytest.raises(RpcError):
            await reading.read()

    scenario()
