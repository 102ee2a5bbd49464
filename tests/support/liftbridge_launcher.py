"""A real server as `shardd-liftbridge` starts it, with the command line and the YAML file of a Liftbridge server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from tests.support.doors import serving_door
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD, START_TIMEOUT_S, Server

HARNESS_FLAGS: Final = ("--embedded-nats", "--raft-bootstrap-seed")
YAML: Final = """\
listen: {address}
cursors:
    stream.auto.pause.time: 0
    stream.partitions: 1
"""


class LiftbridgeLauncher(Server):
    """`liftbridge` is where its clients connect, `nats` where publishers of NATS do."""

    def __init__(
        self,
        data_dir: Path,
        yaml: str = YAML,
        flags: tuple[str, ...] = HARNESS_FLAGS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.liftbridge = f"127.0.0.1:{free_port()}"
        self.nats = f"127.0.0.1:{free_port()}"
        self.config = data_dir.with_name(f"{data_dir.name}.yaml")
        self.config.write_text(yaml.format(address=self.liftbridge))
        own = {
            "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": self.nats,
            "SHARDD_ROOT_USERNAME": "iggy",
            "SHARDD_ROOT_PASSWORD": "iggy",
        }
        super().__init__(data_dir, {**ONE_SHARD, **own, **(env or {})}, ())
        self._flags = flags

    def _command(self) -> list[str]:
        return [
            sys.executable, "-m", "shardd.cli.liftbridge", "-c", str(self.config), "-d", str(self.data_dir),
            *self._flags,
        ]  # fmt: skip

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        super().start(timeout_s)
        self.wait_for_door(timeout_s)

    def wait_for_door(self, timeout_s: float = START_TIMEOUT_S, other_than: int = 0) -> psutil.Process:
        """The process of the door when it serves. TimeoutError."""
        return serving_door(self, "liftbridge", other_than, timeout_s)
