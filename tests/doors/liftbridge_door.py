"""The JSON door of the tests under the name `liftbridge`: what only that door may do.

    liftbridge_door.py HOST PORT DESCRIPTOR     (only the supervisor starts it)

Beside what json_door.py has: {"do": "by_setting", "username": "anonymous"}, {"do": "task:prepare", "request": {...}},
{"do": "noticed", "request": {"after": INDEX}} waits for the notice of a newer record.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))  # a program of its own, beside modules of the tests

from shardd.doors.door import Door, DoorClient
from shardd.doors.process import run_door
from shardd.protocol.door_frames import Purpose
from tests.doors.json_door import JsonClient, Line, serve_lines

_TASK: Final = "task:"


class Notices:
    """What the workers have told."""

    def __init__(self, door: Door) -> None:
        self.count = self.newest = 0
        self._more = asyncio.Event()
        door.on_metadata_changed = self._heard

    def _heard(self, index: int) -> None:
        self.count += 1
        self.newest = max(self.newest, index)
        self._more.set()

    async def newer(self, index: int) -> list[int]:
        while self.newest <= index:
            self._more.clear()
            await self._more.wait()
        return [self.newest, self.count]


class Client(JsonClient):
    def __init__(
        self, door: Door, notices: Notices, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(door, reader, writer)
        self._notices = notices

    async def _do(self, client: DoorClient, said: Line) -> object:
        if "batch" in said.request:
            said.request["batch"] = base64.b64decode(said.request["batch"])
        if said.do == "by_setting":
            return await client.login_by_setting(Purpose(said.username))
        if said.do == "noticed":
            return await self._notices.newer(said.request["after"])
        if said.do.startswith(_TASK):
            return await self._door.task(said.do.removeprefix(_TASK), said.request, shard=client.shard)
        return await super()._do(client, said)


async def serve(door: Door) -> None:
    await serve_lines(door, partial(Client, door, Notices(door)))


if __name__ == "__main__":
    run_door(serve)
