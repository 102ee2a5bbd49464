"""The parts of the door for Liftbridge that speak NATS, as a door of their own: for tests and for their benchmark.

    python -m tests.doors.nats_door HOST PORT NATS_PORT STRICT_PORT SETTINGS       (only the supervisor starts it)

On PORT it is the JSON door, with `losses` (what was counted) and `figures` beside the commands. On NATS_PORT and
STRICT_PORT it is a NATS server, there without anonymous clients. SETTINGS is JSON: `Settings`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Mapping

import msgspec

from shardd.config.liftbridge import LiftbridgeNats
from shardd.doors.door import Door, DoorClient
from shardd.doors.liftbridge.ingest import Ingest
from shardd.doors.liftbridge.losses import Losses
from shardd.doors.liftbridge.nats.link import NatsLink
from shardd.doors.liftbridge.nats.server import NatsServer
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.router import Router
from shardd.doors.links import WorkerLostError
from shardd.doors.process import run_door
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import AllStreams, Prepare, StreamInfo
from tests.doors.json_door import LINE_BYTES_MAX, JsonClient, Line

NO_NATS = LiftbridgeNats((), "", (), "", *[""] * 8)


class Settings(msgspec.Struct):
    """`nats`: the servers to connect to; none: this door is one."""

    nats: LiftbridgeNats = NO_NATS
    payload_bytes_max: int = 1 << 20
    message_bytes_max: int = 1 << 20


class View:
    """All streams, asked for whenever something has changed."""

    def __init__(self, door: Door) -> None:
        self.router = Router()
        self._door = door
        self._streams: dict[str, StreamInfo] = {}
        self._version = 0
        self._noticed = asyncio.Event()
        self._changes = asyncio.Condition()

    def streams(self) -> Mapping[str, StreamInfo]:
        return self._streams

    async def changed(self, since: int) -> int:
        async with self._changes:
            await self._changes.wait_for(lambda: self._version > since)
            return self._version

    async def follow(self) -> None:
        self._door.on_metadata_changed = lambda index: self._noticed.set()
        await self._door.task("prepare", Prepare())
        while True:
            try:
                await self._refresh()
            except (ShardError, WorkerLostError):
                await asyncio.sleep(0.2)
                continue
            await self._noticed.wait()
            self._noticed.clear()

    async def _refresh(self) -> None:
        found = msgspec.convert(await self._door.task("all_streams", AllStreams()), list[StreamInfo], strict=False)
        self.router.replace(found)
        self._streams = {stream.name: stream for stream in found}
        self._version += 1
        async with self._changes:
            self._changes.notify_all()


class Client(JsonClient):
    """With figures of the door."""

    parts: tuple[Ingest, NatsLink | NatsServer]

    async def _do(self, client: DoorClient, said: Line) -> object:
        ingest, nats = self.parts
        if said.do == "losses":
            return {str(loss): count for loss, count in ingest.losses.counts.items()}
        if said.do == "figures":
            publisher = ingest.publisher
            return {
                "pending": publisher.pending_messages,
                "pending_bytes": publisher.pending_bytes,
                "names": [*ingest.view.streams()],
                "listens": nats.version if isinstance(nats, NatsLink) else 1,
                "unread": nats.unread.used if isinstance(nats, NatsServer) else 0,
                "unsent": nats.unsent.used if isinstance(nats, NatsServer) else 0,
            }
        return await super()._do(client, said)


async def serve(door: Door) -> None:
    host, port, nats_port, strict_port, text = sys.argv[1:6]
    settings = msgspec.json.decode(text, type=Settings)
    await asyncio.gather(*(link.connected.wait() for link in door.links))
    view, losses = View(door), Losses()
    ingest = Ingest(view, Publisher(settings.message_bytes_max), settings.message_bytes_max, losses)
    nats: NatsLink | NatsServer
    if settings.nats.servers:
        nats = NatsLink(door, settings.nats, ingest)
        running = [nats.run()]
    else:
        nats, strict = (
            NatsServer(
                door,
                ingest,
                payload_bytes_max=settings.payload_bytes_max,
                anonymous=anonymous,
                connections_max=1_000,
                partial_frame_timeout_s=3.0,
                slow_reader_timeout_s=3.0,
            )
            for anonymous in (True, False)
        )
        running = [
            each.run(socket.create_server((host, int(number))))
            for each, number in ((nats, nats_port), (strict, strict_port))
        ]
    working = [asyncio.create_task(each) for each in (view.follow(), *running)]

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the door stops
            each = Client(door, reader, writer)
            each.parts = ingest, nats
            await each.serve()

    server = await asyncio.start_server(client, host, int(port), limit=LINE_BYTES_MAX, reuse_address=True)
    async with server:
        await view.changed(0)
        door.ready()
        await asyncio.gather(*working)


if __name__ == "__main__":
    run_door(serve)
