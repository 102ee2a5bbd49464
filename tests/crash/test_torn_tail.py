"""A cut or dirty tail of a log, as a crash of the machine leaves it: all before it is there, and sending goes on."""

from __future__ import annotations

import random
from pathlib import Path

from tests.crash import faults
from tests.support import wire
from tests.support.server import Server

CUTS = 20
DIRT = ("zero bytes", "random bytes", "an old record")
PARTITIONS = CUTS + len(DIRT)
KEPT, LAST = 5, 3  # messages before and in the last batch


def payload(partition: int, number: int) -> bytes:
    return f"partition {partition} message {number} ".encode() * 4


def fill(connection: wire.Wire) -> None:
    connection.create_topic(connection.create_stream("torn"), "t", PARTITIONS)
    for partition in range(PARTITIONS):
        messages = [wire.message(payload(partition, number)) for number in range(KEPT + LAST)]
        connection.send(0, 0, wire.to_partition(partition), messages[:KEPT])
        connection.send(0, 0, wire.to_partition(partition), messages[KEPT:])


def cut_tails(data: Path) -> dict[int, int]:
    """Cuts each of the first partitions at another point of its last batch; returns how many messages stay whole."""
    whole = {}
    for partition in range(CUTS):
        path = faults.log_path(data, 0, 0, partition)
        content = path.read_bytes()
        messages = wire.parse_messages(content)
        ends = [sum(len(item.raw) for item in messages[: n + 1]) for n in range(len(messages))]
        begin = ends[KEPT - 1]
        keep = begin + (len(content) - begin) * partition // CUTS
        path.write_bytes(content[:keep])
        whole[partition] = sum(end <= keep for end in ends)
    return whole


def soil_tails(data: Path) -> None:
    """Appends what no crash may turn into a message."""
    for number, kind in enumerate(DIRT):
        path = faults.log_path(data, 0, 0, CUTS + number)
        content = path.read_bytes()
        first = wire.parse_messages(content)[0]
        dirt = {"zero bytes": bytes(4096), "random bytes": random.Random(3).randbytes(1000), "an old record": first.raw}
        path.write_bytes(content + dirt[kind])


def test_everything_before_a_torn_tail_is_there_and_offsets_continue(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        with wire.connect(server.address) as connection:
            fill(connection)
        server.stop()
        whole = cut_tails(tmp_path) | dict.fromkeys(range(CUTS, PARTITIONS), KEPT + LAST)
        soil_tails(tmp_path)
        assert set(whole.values()) == set(range(KEPT, KEPT + LAST)) | {KEPT + LAST}
        server = Server(tmp_path)
        server.start()
        with wire.connect(server.address) as connection:
            for partition, count in whole.items():
                check(connection, partition, count)
        server.stop()
        server = Server(tmp_path)
        server.start()
        with wire.connect(server.address) as connection:
            for partition, count in whole.items():
                assert len(connection.read_all(0, 0, partition)) == count + 1
    finally:
        server.stop()


def check(connection: wire.Wire, partition: int, count: int) -> None:
    messages = connection.read_all(0, 0, partition)
    assert [item.payload for item in messages] == [payload(partition, n) for n in range(count)], (
        f"partition {partition}"
    )
    assert [item.offset for item in messages] == list(range(count))
    assert connection.partitions(0, 0)[partition].messages_count == count
    connection.send(0, 0, wire.to_partition(partition), [wire.message(b"after the crash")])
    (newest,) = connection.poll(0, 0, partition, strategy=wire.POLL_LAST, count=1).messages
    assert (newest.offset, newest.payload) == (count, b"after the crash")
    assert newest.timestamp_us >= messages[-1].timestamp_us
