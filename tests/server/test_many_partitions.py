"""Many partitions: workers live through a large deletion, and a start with 10,000 partitions keeps its promises."""

from __future__ import annotations

from pathlib import Path

from tests.support import wire
from tests.support.server import Server

TOPICS, PARTITIONS, WITH_DATA = 10, 1_000, 60


def test_ten_thousand_partitions_start_again_and_are_deleted_by_the_same_workers(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        with wire.connect(server.address) as connection:
            stream = connection.create_stream("many")
            for number in range(TOPICS):
                connection.create_topic(stream, f"t{number}", PARTITIONS)
            for number in range(WITH_DATA):
                message = wire.message(f"{number}".encode())
                connection.send(stream, number % TOPICS, wire.to_partition(number * 16), [message])
        server.kill_supervisor()
        server.start()
        workers = server.worker_pids()
        with wire.connect(server.address) as connection:
            for number in range(WITH_DATA):
                found = connection.read_all(stream, number % TOPICS, number * 16)
                assert [message.payload for message in found] == [f"{number}".encode()]
            connection.delete_stream(stream)
            assert connection.streams() == {}
        assert server.worker_pids() == workers
        assert "gives no sign of life" not in server.log()
