"""shardd of this installation, for one measurement."""

from __future__ import annotations

import socket
import sys
import time
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shardd import __version__
from shardd.benchmark.options import Options
from shardd.benchmark.servers.base import START_TIMEOUT_S, Places, Started, plain_environment
from shardd.benchmark.servers.wire import Wire
from shardd.client.values import Stats

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor

_MEANINGS: Final = {
    "memory": "memory: acknowledged from memory",
    "written": "written: written to the file before the answer, fdatasync every second",
    "durable": "durable: fdatasync before the answer",
}


class OwnShardd(Started):
    name = "shardd"

    def start(self, options: Options) -> None:
        directory = self.make_directory(options)
        self.version, self.durability = __version__, _MEANINGS[options.durability]
        environment = plain_environment() | {
            "SHARDD_SYSTEM_PATH": str(directory / "data"),
            "SHARDD_TCP_ADDRESS": "127.0.0.1:0",
            "SHARDD_SYSTEM_PARTITION_ACK": options.durability,
            **dict(pair.split("=", 1) for pair in options.server_settings),
        }
        command = [sys.executable, "-P", "-m", "shardd", "serve", "--with-default-root-credentials"]
        self.run(command, options, environment)
        config = directory / "data" / "runtime" / "current_config.toml"
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.is_running() and not config.exists():
            time.sleep(0.02)
        if config.exists():
            address = str(tomllib.loads(config.read_text())["tcp"]["address"])
            self.port = int(address.rpartition(":")[2])
        self.wait_for("its log ends with")

    def _reached(self, options: Options) -> Options:
        address = f"127.0.0.1:{self.port}"
        return replace(options, server_address=address, unix_path="", username="iggy", password="iggy")

    def prepare(self, options: Options) -> Places:
        return Wire().prepare(self._reached(options))

    def open(self, options: Options, actor: Actor) -> socket.socket:
        return Wire().open(self._reached(options), actor)

    def stats(self, options: Options) -> Stats | None:
        return Wire().stats(self._reached(options))
