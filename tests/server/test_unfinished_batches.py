"""Of a batch of an idempotent producer that a kill has cut short nothing is kept (shardd/log/unfinished_batch.py)."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import xxhash

from shardd.engine import WithheldRange, _native
from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.recovery import open_partition
from shardd.log.unfinished_batch import is_any_withheld
from shardd.protocol.producers import Produced, ProducedKind, ProducerEpoch
from shardd.runtime.boot import boot_id
from shardd.runtime.regular_files import NotRegularError
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import identified, restarted, stored
from tests.server.test_retention import create_topic
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

BATCH, BATCHES = 5, 4
LAST = BATCH * (BATCHES - 1)  # offset of the last batch
BOOT = slice(32, 48)
CHECK = slice(56, 64)


class Left(NamedTuple):
    """What a kill has left: batches of a producer, the last one from byte `begin` of the log on."""

    server: Server
    directory: Path
    who: ProducerEpoch
    incarnation: int
    begin: int

    @property
    def log(self) -> Path:
        return layout.segment_log(self.directory, 0)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    server = Server(tmp_path_factory.mktemp("unfinished") / "data", env=ONE_SHARD)
    server.start()
    directory = layout.partition_directory(server.data_dir, 0, 0, 0)
    with wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        who = init(root)
        for sequence in range(BATCHES):
            begin = layout.segment_log(directory, 0).stat().st_size if sequence else 0
            numbers = [BATCH * sequence + place for place in range(BATCH)]
            assert once(root, who, sequence, numbers) == Produced(ProducedKind.STORED, BATCH, BATCH * sequence)
    for pid in (server.pid, *server.running_workers().values()):
        os.kill(pid, signal.SIGKILL)
    server.stop()
    incarnation = read_incarnation(directory)
    assert incarnation is not None
    return Left(server, directory, who, incarnation, begin)


def copied(left: Left, to: Path, log_bytes: int) -> Path:
    """The partition as if the kill had come when its log had so many bytes."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(left.directory, to)
    os.truncate(layout.segment_log(to, 0), log_bytes)
    return to


def become_of_another_boot(directory: Path, incarnation: int) -> None:
    """The file of producers."""
    content = bytearray((directory / layout.PRODUCERS).read_bytes())
    content[BOOT] = bytes(16)
    keys = incarnation.to_bytes(8, "little") + bytes(8)
    content[CHECK] = xxhash.xxh3_64_intdigest(keys + content[:56]).to_bytes(8, "little")
    (directory / layout.PRODUCERS).write_bytes(content)


def test_a_log_that_ends_anywhere_inside_a_batch_ends_before_it(left: Left, tmp_path: Path) -> None:
    size, content = left.log.stat().st_size, left.log.read_bytes()
    for end in range(left.begin, size + 1):
        copy = copied(left, tmp_path / "copy", end)
        [segment] = open_partition(copy, left.incarnation).segments
        whole = LAST + BATCH if end == size else LAST
        assert segment.records == whole, end
        assert layout.segment_log(copy, 0).read_bytes() == (content if end == size else content[: left.begin])
        torn = layout.segment_torn(copy, 0, 0)
        kept = b"".join(path.read_bytes() for path in sorted(copy.glob("*.torn*"), reverse=True))
        assert (kept == content[left.begin : end]) if left.begin < end < size else not torn.exists()
        [again] = open_partition(copy, left.incarnation).segments
        assert again == segment


def test_a_healthy_partition_with_producers_needs_no_decision(left: Left, tmp_path: Path) -> None:
    for end, usual in ((left.log.stat().st_size, True), (left.begin, True), (left.begin + 1, False)):
        copy = copied(left, tmp_path / "copy", end)
        assert (_native.recover_partition(os.fspath(copy), left.incarnation, boot_id()) is not None) is usual


def test_places_of_another_boot_cut_nothing(left: Left, tmp_path: Path) -> None:
    """The records there may be others', acknowledged at `durable`."""
    for number, end in enumerate(record_ends(left), 1):
        copy = copied(left, tmp_path / "copy", end)
        become_of_another_boot(copy, left.incarnation)
        [segment] = open_partition(copy, left.incarnation).segments
        assert segment.records == LAST + number


def test_a_batch_is_withheld_when_any_range_meets_it(left: Left) -> None:
    """Ranges overlap in any way; the first batch begins at offset 0."""
    content, rng = (left.directory / layout.PRODUCERS).read_bytes(), random.Random(7)
    end = LAST + BATCH
    assert is_any_withheld(content, left.incarnation, [WithheldRange((0, 1, False))])
    assert not is_any_withheld(content, left.incarnation, [])
    for _ in range(200):
        ranges = [sorted(rng.sample(range(2 * end), 2)) for _ in range(rng.randint(1, 3))]
        found = is_any_withheld(content, left.incarnation, [WithheldRange((*each, False)) for each in ranges])
        assert found is any(start < end for start, _ in ranges), ranges


def test_what_is_no_file_stops_nobody(left: Left, tmp_path: Path) -> None:
    copy = copied(left, tmp_path / "copy", left.begin + 1)
    (copy / layout.PRODUCERS).unlink()
    os.mkfifo(copy / layout.PRODUCERS)
    with pytest.raises(NotRegularError):
        open_partition(copy, left.incarnation)
    (copy / layout.PRODUCERS).unlink()
    (copy / layout.PRODUCERS).write_bytes(b"")
    os.truncate(copy / layout.PRODUCERS, 1 << 40)
    assert [each.records for each in open_partition(copy, left.incarnation).segments] == [LAST]


def record_ends(left: Left) -> list[int]:
    """Of the records of the last batch, which are of one length, without the last one."""
    size = left.log.stat().st_size - left.begin
    assert size % BATCH == 0
    return [left.begin + number * size // BATCH for number in range(1, BATCH)]


def test_who_sends_it_again_has_it_once(left: Left) -> None:
    server = left.server
    os.truncate(left.log, record_ends(left)[1])
    with server, wire.connect(server.address) as root:
        assert stored(root) == list(range(LAST))
        numbers = [LAST + place for place in range(BATCH)]
        assert once(root, left.who, BATCHES, [99]) == Produced(ProducedKind.GAP, 0, BATCHES - 1)
        assert once(root, left.who, BATCHES - 1, numbers) == Produced(ProducedKind.STORED, BATCH, LAST)
        assert once(root, left.who, BATCHES - 1, numbers) == Produced(ProducedKind.DUPLICATE, BATCH, LAST)
        root.send("s", "t", wire.to_partition(0), [identified(LAST + BATCH)])
        assert "begins a batch that was not stored whole" in server.log()
        root.close()
        restarted(server, signal.SIGKILL)
        with wire.connect(server.address) as later:
            assert stored(later) == list(range(LAST + BATCH + 1))
