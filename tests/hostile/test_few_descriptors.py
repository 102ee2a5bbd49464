"""A limit of open files that is far too low makes the log slow, and keeps nobody out."""

from __future__ import annotations

import threading
import time

from tests.conftest import MakeServer
from tests.support import wire
from tests.support.server import Server

LIMIT = 256
PARTITIONS = 200
CONNECTIONS = 10
WAIT_S = 60.0


class Producer(threading.Thread):
    """Sends to all partitions in turn, so that more files are in use than may be open."""

    def __init__(self, server: Server, stream: int) -> None:
        super().__init__()
        self.ended = threading.Event()
        self.sent = self.taken = 0
        self._address = server.address
        self._stream = stream

    def run(self) -> None:
        batch = [wire.message(b"x" * 100)]
        with wire.connect(self._address) as connection:
            while not self.ended.is_set():
                for partition in range(PARTITIONS):
                    request = wire.batch(self._stream, 0, wire.to_partition(partition), batch)
                    self.taken += connection.status(wire.SEND_MESSAGES, request) == 0
                    self.sent += 1


def test_connections_are_accepted_at_once_when_the_log_has_all_descriptors(make_server: MakeServer) -> None:
    server = make_server({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}, start=False)
    server._launcher = ["prlimit", f"--nofile={LIMIT}:{LIMIT}"]
    server.start()
    workers = server.running_workers()
    with wire.connect(server.address) as connection:
        stream = connection.create_stream("s")
        connection.create_topic(stream, "t", PARTITIONS)
        producer = Producer(server, stream)
        producer.start()
        try:
            deadline = time.monotonic() + 3 * WAIT_S
            while producer.sent < 6 * PARTITIONS:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for _ in range(CONNECTIONS):
                with wire.Wire(server.address, timeout_s=WAIT_S) as other:
                    other.ping()
                time.sleep(0.05)
            taken, deadline = producer.taken, time.monotonic() + WAIT_S
            while producer.taken == taken:
                assert time.monotonic() < deadline, "sends are taken, too"
                time.sleep(0.01)
        finally:
            producer.ended.set()
            producer.join(WAIT_S)
        assert sum(each.messages_count for each in connection.partitions(stream, 0)) == producer.taken
    assert server.running_workers() == workers
