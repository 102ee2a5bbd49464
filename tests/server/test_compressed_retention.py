"""Retention where segments are compressed: the log start within one of them, limits in plain bytes, files that leave
with nothing of them behind, restarts in between."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final

from shardd.log import layout
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wire import Wire

SEGMENT_BYTES = 256 << 10
BATCH = 100
MESSAGES = 20 * BATCH
TIMEOUT_S = 90.0
FIRST = 3  # polling strategy
ENV = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": "zstd",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
}
PAYLOADS = [b"%06d" % number + b"of which much is the same " * 36 for number in range(MESSAGES)]
RECORD_BYTES = 64 + len(PAYLOADS[0])


def fill(server: Server) -> None:
    """Makes a topic whose sealed segments are all compressed."""
    with wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 1)
        for first in range(0, MESSAGES, BATCH):
            batch = [wire.message(each) for each in PAYLOADS[first : first + BATCH]]
            root.send("s", "t", wire.to_partition(0), batch)
    until(server, lambda: len(files(server, "log")) == 1 and len(files(server, "blocks")) == 5)


SERVER: Final = Serving(env=ENV, fill=fill)


def until(server: Server, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def files(server: Server, *kinds: str) -> list[tuple[int, str]]:
    """Start offsets and kinds of the files of segments; all kinds when none is named."""
    directory = layout.partition_directory(server.data_dir, 0, 0, 0)
    split = [path.name.split(".", 1) for path in directory.iterdir() if path.name[:1].isdigit()]
    return sorted((int(start), kind) for start, kind in split if kind in kinds or not kinds)


def served(root: Wire) -> list[int]:
    """The offsets that polls give; their messages are those that were sent."""
    first = [*root.poll("s", "t", 0, strategy=FIRST, count=MESSAGES).messages]
    found = first + root.read_all("s", "t", 0)[len(first) :]
    assert [each.payload for each in found] == [PAYLOADS[each.offset] for each in found]
    return [each.offset for each in found]


def update(root: Wire, *, expiry_us: int = 0, size_bytes: int = 0) -> None:
    fixed = struct.pack("<BQQB", 1, expiry_us, size_bytes, 0)
    root.request(Code.UPDATE_TOPIC, wire.identifier("s") + wire.identifier("t") + fixed + wire.str8("t"))


def check_files(server: Server, first: int) -> None:
    """Each segment that holds what is served has its three files, and there is nothing else."""
    found = files(server)
    starts = sorted({start for start, _ in found})
    kinds = [sorted(kind for start, kind in found if start == each) for each in starts]
    assert kinds == [["blocks", "index", "manifest"]] * (len(starts) - 1) + [["index", "log", "manifest"]]
    assert starts[0] <= first and all(start > first for start in starts[1:2])


def test_the_log_starts_within_a_compressed_segment_through_a_stop_and_a_kill(own_server: Server) -> None:
    first = files(own_server, "blocks")[3][0] + 17
    kept = SetTopicSettings("s", "t", (("partition_messages_max", str(MESSAGES - first)),))
    with wire.connect(own_server.address) as root:
        root.request(ExtensionCode.SET_TOPIC_SETTINGS, kept.encode())
        until(own_server, lambda: files(own_server, "blocks")[0][0] == first - 17)
        [details] = root.partitions("s", "t")
        assert (details.messages_count, details.size_bytes) == (MESSAGES - first, (MESSAGES - first) * RECORD_BYTES)
    for end in (own_server.stop, own_server.kill_supervisor):
        with wire.connect(own_server.address) as root:
            assert served(root) == list(range(first, MESSAGES))
            [by_time] = root.poll("s", "t", 0, strategy=2, value=1, count=1).messages
            assert by_time.offset == first
        check_files(own_server, first)
        end()
        own_server.start()
    with wire.connect(own_server.address) as root:
        assert served(root) == list(range(first, MESSAGES))


def test_the_size_of_a_compressed_topic_is_that_of_its_messages(own_server: Server) -> None:
    limit = 4 * SEGMENT_BYTES
    stored = sum(path.stat().st_size for path in layout.partition_directory(own_server.data_dir, 0, 0, 0).iterdir())
    assert stored < limit // 2  # by what lies on the disk nothing would go
    with wire.connect(own_server.address) as root:
        update(root, size_bytes=limit)
        until(own_server, lambda: root.partitions("s", "t")[0].size_bytes < limit * 9 // 10)
        [details] = root.partitions("s", "t")
        left = served(root)
        assert left == list(range(left[0], MESSAGES))
        assert details.size_bytes == len(left) * RECORD_BYTES
        assert details.size_bytes >= limit * 9 // 10 - (SEGMENT_BYTES + BATCH * RECORD_BYTES)
        until(own_server, lambda: files(own_server, "blocks")[0][0] == left[0])
    check_files(own_server, left[0])
    own_server.kill_supervisor()
    own_server.start()
    with wire.connect(own_server.address) as root:
        assert served(root) == left
        assert root.partitions("s", "t")[0].size_bytes == len(left) * RECORD_BYTES


def test_what_expires_leaves_with_all_of_its_files(own_server: Server) -> None:
    left = (
        layout.partition_directory(own_server.data_dir, 0, 0, 0)
        / f"{files(own_server, 'blocks')[0][0]:020d}.blocks.tmp"
    )
    own_server.stop()
    left.write_bytes(b"cut short by a crash")
    own_server.start()
    with wire.connect(own_server.address) as root:
        assert len(served(root)) == MESSAGES
        update(root, expiry_us=1000)
        assert served(root) == []
        until(own_server, lambda: [start for start, _ in files(own_server)] == [MESSAGES] * 3)
        [details] = root.partitions("s", "t")
        assert (details.messages_count, details.size_bytes, details.segments_count) == (0, 0, 1)
    check_files(own_server, MESSAGES)
    own_server.kill_supervisor()
    own_server.start()
    with wire.connect(own_server.address) as root:
        assert served(root) == []
        update(root, expiry_us=3600 * 1_000_000)
        root.send("s", "t", wire.to_partition(0), [wire.message(b"behind")])
        [behind] = root.read_all("s", "t", 0)
        assert (behind.offset, behind.payload) == (MESSAGES, b"behind")
