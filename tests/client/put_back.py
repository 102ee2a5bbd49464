"""A server that gets its data directory back as files, and then other messages behind its end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from shardd.client import Client
from tests.client.topics import make, send, url
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD, Server

COPIED, READ, OTHERS = range(100), range(100, 150), range(1000, 1080)


async def _fill(server: Server) -> None:
    async with Client(url(server)) as client:
        await make(client, "s")
        await send(client, "s", COPIED)


def _copied(place: Path) -> Path:
    """A directory with COPIED, made once for all tests of a process."""
    if not place.exists():
        with Server(Path(tempfile.mkdtemp(dir=place.parent), "data"), ONE_SHARD) as server:
            asyncio.run(_fill(server))
        server.data_dir.rename(place)
    return place


class Kept:
    """A server under one address whose directory is copied and put back. It begins with the copy that has COPIED, or
    empty."""

    def __init__(self, directory: Path, *, empty: bool = False) -> None:
        address = {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{free_port()}"}
        self.server = Server(directory / "data", {**ONE_SHARD, **address})
        self._copy = directory / "copy" if empty else _copied(directory.parent / "copied")
        if not empty:
            shutil.copytree(self._copy, self.server.data_dir, symlinks=True)

    def copy(self) -> None:
        """Of an empty one, when something is in it."""
        self.server.stop()
        shutil.copytree(self.server.data_dir, self._copy, symlinks=True)
        self.server.start()

    def put_back(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.data_dir)
        shutil.copytree(self._copy, self.server.data_dir, symlinks=True)
        self.server.start()

    async def filled(self) -> None:
        """The copy has COPIED, the directory READ, too."""
        async with Client(url(self.server)) as client:
            await send(client, "s", READ)

    async def rolled_back(self) -> None:
        self.put_back()
        async with Client(url(self.server)) as client:
            await send(client, "s", OTHERS)
