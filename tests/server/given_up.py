"""A shard that the supervisor gives up: its worker cannot start any more."""

from __future__ import annotations

import os
import signal
import struct
from typing import Final

from tests.server.test_supervisor import wait_until
from tests.support.server import Server

VERSION_AT: Final = 8  # of the header of state.messages


def give_up_shard_1(server: Server) -> None:
    """Returns when that is told. The others go on, and a later start finds nothing changed."""
    log = server.data_dir / "state.messages"
    header = log.read_bytes()[:16]
    with log.open("r+b") as file:
        file.seek(VERSION_AT)
        file.write(struct.pack("<I", 99))
    os.kill(server.running_workers()[1], signal.SIGKILL)
    wait_until(lambda: "shard 1 is given up; the others go on without its partitions" in server.log(), "given up")
    with log.open("r+b") as file:
        file.write(header)
