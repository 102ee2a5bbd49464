"""A partition with everything that lies beside a log, left by a kill; and servers that open it while the disk fails."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardd.log import layout
from shardd.protocol.producers import Produced, ProducedKind
from tests.crash.fault_control import FaultControl
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import identified
from tests.server.test_retention import create_topic
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

BATCH, BATCHES = 5, 60
MESSAGES = BATCH * BATCHES
STORED = 17  # offset of the consumer 1
SETTINGS = ONE_SHARD | {
    "SHARDD_SYSTEM_IO_ENGINE": "epoll",  # the other one reads inside the kernel
    "SHARDD_SYSTEM_SEGMENT_SIZE": "4 KiB",
}
SYNC = "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL"
DEDUPLICATION = {
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_ENABLED": "true",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_MAX_ENTRIES": "5000",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_EXPIRY": "1 h",
}


class Left:
    """`open_again` starts a server on a copy. Odd batches are a producer's."""

    def __init__(self, directory: Path, settings: dict[str, str], sync_interval: str = "50 ms") -> None:
        self.control = FaultControl(directory)
        self._pristine = directory / "pristine"
        self._data = directory / "data"
        self.server = Server(self._data, env=SETTINGS | self.control.environment | {SYNC: sync_interval} | settings)
        self.partition = layout.partition_directory(self._data, 0, 0, 0)
        self.server.start()
        with wire.connect(self.server.address) as root:
            root.create_stream("s")
            create_topic(root)
            self.who = init(root)
            for number in range(BATCHES):
                self.send(root, number)
            root.store_offset("s", "t", 0, STORED)
        kill(self.server)
        self._data.rename(self._pristine)

    def send(self, root: wire.Wire, number: int) -> None:
        numbers = list(range(BATCH * number, BATCH * (number + 1)))
        if number % 2 == 0:
            root.send("s", "t", wire.to_partition(0), [identified(each) for each in numbers])
        else:
            assert self.again(root, number, numbers).kind is ProducedKind.STORED

    def again(self, root: wire.Wire, number: int, numbers: list[int] | None = None) -> Produced:
        """The same batch of the producer."""
        return once(root, self.who, number // 2, numbers or list(range(BATCH * number, BATCH * (number + 1))))

    def fresh(self) -> None:
        """What the kill has left, once more."""
        self.control.disarm()
        shutil.rmtree(self._data, ignore_errors=True)
        shutil.copytree(self._pristine, self._data)
        self.server.log_path.write_bytes(b"")

    @contextmanager
    def opened(self) -> Iterator[wire.Wire]:
        """A server on what is there."""
        self.server.start()
        try:
            with wire.connect(self.server.address) as root:
                yield root
        finally:
            kill(self.server)


def kill(server: Server) -> None:
    """All processes at once."""
    for pid in (server.pid, *server.running_workers().values()):
        os.kill(pid, signal.SIGKILL)
    server.stop()
