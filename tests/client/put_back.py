"""A server that gets its data directory back as files, and then other messages behind its end."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardd.client import Client
from tests.client.topics import make, send, url
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD, Server

COPIED, READ, OTHERS = range(100), range(100, 150), range(1000, 1080)


class Kept:
    """A server under one address whose directory is copied and put back."""

    def __init__(self, directory: Path) -> None:
        address = {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{free_port()}"}
        self.server = Server(directory / "data", {**ONE_SHARD, **address})
        self._copy = directory / "copy"

    def copy(self) -> None:
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
            await make(client, "s")
            await send(client, "s", COPIED)
        self.copy()
        async with Client(url(self.server)) as client:
            await send(client, "s", READ)

    async def rolled_back(self) -> None:
        self.put_back()
        async with Client(url(self.server)) as client:
            await send(client, "s", OTHERS)
