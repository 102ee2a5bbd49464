"""`python -m bench.liftbridge`: the door for Liftbridge beside a servicer that does nothing, with the same client, in
turns in one run, and what a TCP producer notices of it. NATS: `bench.nats`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
import grpc

from bench.http_beside import SETTLE_S, Step, load, others_than_the_owner, p99_us
from shardd.doors.process import give_way
from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import HOST, LiftbridgeServer
from tests.support import wire

VALUE: Final = bytes(100)
STREAM: Final = "bench"
_WAIT_S: Final = 120.0
_REQUEST: Final = api_messages.PublishRequest(stream=STREAM, value=VALUE, correlationId="c").SerializeToString()


async def _do_nothing(port: Connection, messages: int) -> None:
    """Answers what a door would answer, and keeps nothing."""
    ack = api_messages.PublishResponse(correlationId="c")
    ack.ack.stream = ack.ack.partitionSubject = ack.ack.msgSubject = STREAM
    ack.ack.offset, ack.ack.receptionTimestamp, ack.ack.commitTimestamp = 1 << 20, 1 << 60, 1 << 60
    ack.ack.correlationId, ack.ack.ackInbox = "c", "liftbridge-default.ack.0123456789012345678901"
    message = api_messages.Message(offset=1 << 20, value=VALUE, timestamp=1 << 60, stream=STREAM, subject=STREAM)
    message.headers["subject"], message.headers["reply"] = STREAM.encode(), b""
    acked, delivered = ack.SerializeToString(), message.SerializeToString()

    async def publish_async(requests: Any, _context: Any) -> Any:
        async for _ in requests:
            yield acked

    async def subscribe(_request: bytes, _context: Any) -> Any:
        for _ in range(messages):
            yield delivered

    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "PublishAsync": grpc.stream_stream_rpc_method_handler(publish_async),
        "Subscribe": grpc.unary_stream_rpc_method_handler(subscribe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.SERVICE, handlers),))
    bound = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    port.send(bound)
    await server.wait_for_termination()


def _run_nothing(port: Connection, messages: int) -> None:
    give_way()  # as a door does
    asyncio.run(_do_nothing(port, messages))


@contextlib.contextmanager
def nothing(messages: int) -> Iterator[str]:
    """Its address."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_nothing, args=(theirs, messages), daemon=True)
    process.start()
    try:
        assert ours.poll(_WAIT_S)
        yield f"{HOST}:{ours.recv()}"
    finally:
        process.kill()
        process.join()


async def publish_async(address: str, messages: int) -> float:
    """Messages a second of one session that never waits."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(f"/{api.SERVICE}/PublishAsync")()

        async def write() -> None:
            for _ in range(messages):
                await call.write(_REQUEST)
            await call.done_writing()

        began, answered = time.perf_counter(), 0
        writing = asyncio.create_task(write())
        async for _ in call:
            answered += 1
        await writing
        assert answered == messages
        return messages / (time.perf_counter() - began)


async def subscribe(address: str, messages: int) -> float:
    """Messages a second of one subscription to what is stored."""
    request = api_messages.SubscribeRequest(stream=STREAM, startPosition=2).SerializeToString()
    async with grpc.aio.insecure_channel(address) as channel:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{api.SERVICE}/Subscribe")
        call = method(request)
        began, came = time.perf_counter(), 0
        async for _ in call:
            came += 1
            if came == messages:
                break
        call.cancel()
        return messages / (time.perf_counter() - began)


def against_nothing(server: LiftbridgeServer, rounds: int, messages: int) -> None:
    ratios: dict[str, list[float]] = {"PublishAsync": [], "Subscribe": []}
    rates: dict[str, list[float]] = {"PublishAsync": [], "Subscribe": []}
    with nothing(messages) as idle:
        for _ in range(rounds):
            for name, run in (("PublishAsync", publish_async), ("Subscribe", subscribe)):
                with_door = asyncio.run(run(server.liftbridge_address, messages))
                without = asyncio.run(run(idle, messages))
                rates[name].append(with_door)
                ratios[name].append(with_door / without)
    for name, found in ratios.items():
        found.sort()
        print(
            f"{name}: {statistics.median(rates[name]):,.0f} messages a second, {statistics.median(found):.2f} of a "
            f"servicer that does nothing [{found[0]:.2f}..{found[-1]:.2f}]"
        )


def sessions_in_turns(address: str) -> Step:
    """A batch of 100 in a session of its own with each step."""
    channel: Any = grpc.insecure_channel(address)
    call = channel.stream_stream(f"/{api.SERVICE}/PublishAsync")

    def step() -> None:
        list(call(iter([_REQUEST] * 100)))

    return step


def beside_tcp(server: LiftbridgeServer, rounds: int, sends: int, rate: float) -> None:
    """`rate`: messages a second over gRPC."""
    alone, beside = [], []
    with wire.connect(server.address) as producer:
        producer.create_topic(producer.create_stream("s"), "t", 1)
        p99_us(producer, sends)
        os.sched_setaffinity(0, others_than_the_owner(server.pid))
        for _ in range(rounds):
            time.sleep(SETTLE_S)
            alone.append(p99_us(producer, sends))
            with load(lambda: sessions_in_turns(server.liftbridge_address), rate / 100):
                beside.append(p99_us(producer, sends))
    ratios = sorted(found / before for before, found in zip(alone, beside, strict=True))
    print(
        f"p99 of a TCP producer: {statistics.median(alone):.0f} us alone, {statistics.median(beside):.0f} us beside "
        f"{rate:.0f} messages a second over gRPC, {statistics.median(ratios):.2f} times "
        f"[{ratios[0]:.2f}..{ratios[-1]:.2f}]"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=30_000, help="of a round")
    parser.add_argument("--sends", type=int, default=3_000, help="of the TCP producer, in a round")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, LiftbridgeServer(Path(directory) / "data") as server:
        with server.client() as client:
            client.create(STREAM)
        against_nothing(server, said.rounds, said.messages)
        beside_tcp(server, said.rounds, said.sends, rate=2_000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
