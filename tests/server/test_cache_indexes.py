"""`system.segment.cache_indexes` on a real server: polls are the same with each value, reads of .index files are not.
What is kept stays within its bound (docs/adr/0043-cached-indexes.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import Server
from tests.support.top import shard_figures

SEGMENT_BYTES = 256 << 10
BATCH = 400
MESSAGES = 20 * BATCH
ROUNDS = 5
TIMESTAMP = 2  # polling strategy
ENV = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "32 MiB",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1",
}


def poll_everywhere(root: wire.Wire, stamps: dict[int, int]) -> list[list[int]]:
    """Offsets that polls by offset and by timestamp give, far from the end."""
    answers = [root.poll("s", "t", 0, value=offset, count=7) for offset in stamps]
    answers += [root.poll("s", "t", 0, strategy=TIMESTAMP, value=stamp, count=7) for stamp in stamps.values()]
    return [[each.offset for each in answer.messages] for answer in answers]


@pytest.mark.parametrize(
    ("value", "compression"), [("none", "none"), ("open_segment", "none"), ("all", "none"), ("all", "zstd")]
)
def test_polls_are_the_same_and_only_all_spares_reads_of_the_file(tmp_path: Path, value: str, compression: str) -> None:
    env = ENV | {
        "IGGY_SYSTEM_SEGMENT_CACHE_INDEXES": value,
        "SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": compression,
    }
    with Server(tmp_path / "data", env=env) as server:
        with wire.connect(server.address) as root:
            root.create_topic(root.create_stream("s"), "t", 1)
            for first in range(0, MESSAGES, BATCH):
                messages = [wire.message(b"%09d" % number * 10) for number in range(first, first + BATCH)]
                root.send("s", "t", wire.to_partition(0), messages)
            everything = root.read_all("s", "t", 0)
            assert len(everything) == MESSAGES
            stamps = {each.offset: each.timestamp_us for each in everything[: MESSAGES // 2 : 501]}
            expected = [list(range(offset, offset + 7)) for offset in stamps]
            for stamp in stamps.values():
                first = next(each.offset for each in everything if each.timestamp_us >= stamp)
                expected.append(list(range(first, first + 7)))
            poll_everywhere(root, stamps)
            before = shard_figures(server.address)[0]
            for _ in range(ROUNDS):
                assert poll_everywhere(root, stamps) == expected
            after = shard_figures(server.address)[0]
        reads = after["engine.index_reads"] - before["engine.index_reads"]
        hits = after["engine.index_hits"] - before["engine.index_hits"]
        polls = ROUNDS * len(expected)
        if value == "all":
            assert reads == 0 and hits >= polls
            assert 0 < after["engine.index_pages_bytes"] <= (32 << 20) // 16
        else:
            assert reads >= polls and hits == 0
            assert after["engine.index_pages_bytes"] == 0
