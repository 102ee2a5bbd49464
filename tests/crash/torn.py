"""`make crash-torn`: the last batch of a log is cut at every byte (recovery alone) and at 100 points (a real server).
All before the cut is there, whole records of the batch may be, nothing else ever is, and sending goes on.

    python -m tests.crash.torn
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.recovery import open_partition
from tests.crash import faults
from tests.support import wire
from tests.support.server import Server
from tests.unit.log_files import INCARNATION, segment, write

POINTS: Final = 100
DIRT: Final = ("zero bytes", "random bytes", "an old record")
KEPT, LAST = 5, 3  # messages before and in the last batch


def payload(partition: int, number: int) -> bytes:
    return f"partition {partition} message {number} ".encode() * 4


def fill(connection: wire.Wire, partitions: int) -> None:
    connection.create_topic(connection.create_stream("torn"), "t", partitions)
    for partition in range(partitions):
        messages = [wire.message(payload(partition, number)) for number in range(KEPT + LAST)]
        connection.send(0, 0, wire.to_partition(partition), messages[:KEPT])
        connection.send(0, 0, wire.to_partition(partition), messages[KEPT:])


def cut_tails(data: Path, cuts: int) -> dict[int, int]:
    """Cuts each of the first partitions at another point of its last batch; returns how many messages stay whole."""
    whole = {}
    for partition in range(cuts):
        path = faults.log_path(data, 0, 0, partition)
        content = path.read_bytes()
        messages = wire.parse_messages(content)
        ends = [sum(len(item.raw) for item in messages[: n + 1]) for n in range(len(messages))]
        begin = ends[KEPT - 1]
        keep = begin + (len(content) - begin) * partition // cuts
        path.write_bytes(content[:keep])
        whole[partition] = sum(end <= keep for end in ends)
    return whole


def soil_tails(data: Path, cuts: int) -> None:
    """Appends what no crash may turn into a message."""
    for number, kind in enumerate(DIRT):
        path = faults.log_path(data, 0, 0, cuts + number)
        content = path.read_bytes()
        first = wire.parse_messages(content)[0]
        dirt = {"zero bytes": bytes(4096), "random bytes": random.Random(3).randbytes(1000), "an old record": first.raw}
        path.write_bytes(content + dirt[kind])


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


def through_a_server(data: Path, cuts: int) -> None:
    """`cuts` partitions with a cut last batch, and the dirty ones; AssertionError."""
    partitions = cuts + len(DIRT)
    server = Server(data)
    server.start()
    try:
        with wire.connect(server.address) as connection:
            fill(connection, partitions)
        for process in server.processes():  # no orderly stop: nothing is checkpointed
            faults.kill9(process.pid)
        server.wait()
        whole = cut_tails(data, cuts) | dict.fromkeys(range(cuts, partitions), KEPT + LAST)
        soil_tails(data, cuts)
        assert set(whole.values()) == set(range(KEPT, KEPT + LAST)) | {KEPT + LAST}
        server = Server(data)
        server.start()
        with wire.connect(server.address) as connection:
            for partition, count in whole.items():
                check(connection, partition, count)
        server.stop()
        server = Server(data)
        server.start()
        with wire.connect(server.address) as connection:
            for partition, count in whole.items():
                assert len(connection.read_all(0, 0, partition)) == count + 1
    finally:
        server.stop()


def at_every_byte(data: Path) -> int:
    """Recovery alone, of a log that ends at any byte of its last batch; how many. AssertionError."""
    directory = layout.partition_directory(data, 0, 0, 0)
    stored = segment(0, [KEPT, LAST], payload_bytes=200)
    write(directory, stored)
    log = layout.segment_log(directory, 0)
    begin = stored.borders[KEPT]
    for length in range(begin, len(stored.log)):
        for path in directory.glob("*.manifest"):
            path.unlink()
        log.write_bytes(stored.log[:length])
        layout.segment_index(directory, 0).write_bytes(stored.index)
        recovered = open_partition(directory, INCARNATION)
        whole = max(number for number, border in enumerate(stored.borders) if border <= length)
        assert (recovered.state, recovered.damaged) == (0, [])
        assert recovered.segments[0][:3] == (0, stored.borders[whole], whole), f"cut at byte {length}"
        assert log.read_bytes() == stored.log[: stored.borders[whole]]
        assert layout.segment_index(directory, 0).read_bytes() == stored.index[: 16 * whole]
        torn = layout.segment_torn(directory, 0, 0)
        assert length == stored.borders[whole] or torn.read_bytes() == stored.log[stored.borders[whole] : length]
        torn.unlink(missing_ok=True)
    return len(stored.log) - begin


def canary(data: Path) -> bool:
    """Whether a message that goes missing is noticed."""
    server = Server(data)
    server.start()
    try:
        with wire.connect(server.address) as connection:
            fill(connection, 1)
            check(connection, 0, KEPT + LAST - 1)
    except AssertionError:
        return True
    finally:
        server.stop()
    return False


def main() -> None:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardd-torn-") as directory:
        caught = canary(Path(directory) / "canary")
        cuts = at_every_byte(Path(directory) / "recovery")
        through_a_server(Path(directory) / "server", POINTS)
    print(
        f"crash-torn: {cuts} cuts at the log layer, {POINTS} cuts and {len(DIRT)} dirty tails through a server, "
        f"0 losses, canary {'reported' if caught else 'NOT REPORTED'}, {time.monotonic() - began_s:.0f} s"
    )
    sys.exit(0 if caught else 1)


if __name__ == "__main__":
    main()
