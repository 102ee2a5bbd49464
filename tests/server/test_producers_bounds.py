"""The file of producers has one bound for its writer and one for all of its readers, and a file that an earlier version
let grow without a bound is still believed (native/src/log/producers.h)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.engine import _native
from shardd.log import layout
from shardd.log.recovery import open_partition
from shardd.log.unproven_tail import BYTES_MAX
from shardd.protocol.producers import Produced, ProducedKind
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import stored
from tests.server.test_retention import create_topic
from tests.server.test_unfinished_batches import BATCH, LAST, Left, copied, left, record_ends
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

__all__ = ["left"]  # a fixture
HEAD_BYTES = 128
PLACES = 8192  # of a file whose writer keeps to its bound
PRODUCERS = 3


def outgrow(file: Path, bytes_min: int) -> int:
    """Puts free places before the entries, as many as forgotten producers left in earlier versions."""
    content = file.read_bytes()
    entry = (_native.PRODUCERS_FILE_BYTES_MAX - HEAD_BYTES) // PLACES
    empty = -(-bytes_min // entry) * entry
    file.write_bytes(content[:HEAD_BYTES] + bytes(empty) + content[HEAD_BYTES:])
    return file.stat().st_size


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", env=ONE_SHARD) as running:
        yield running


def kill(server: Server) -> None:
    for pid in (server.pid, *server.running_workers().values()):
        os.kill(pid, signal.SIGKILL)
    server.stop()


def test_a_producers_file_beyond_the_writers_bound_serves_everything(server: Server) -> None:
    file = layout.partition_directory(server.data_dir, 0, 0, 0) / layout.PRODUCERS
    with wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        producers = [init(root) for _ in range(PRODUCERS)]
        for number, who in enumerate(producers):
            assert once(root, who, 0, [number]) == Produced(ProducedKind.STORED, 1, number)
    kill(server)
    usual = file.stat().st_size
    assert outgrow(file, _native.PRODUCERS_FILE_BYTES_MAX) > _native.PRODUCERS_FILE_BYTES_MAX
    server.start()
    with wire.connect(server.address) as root:
        assert stored(root) == list(range(PRODUCERS))
        for number, who in enumerate(producers):
            assert once(root, who, 0, [number]) == Produced(ProducedKind.DUPLICATE, 1, number)
        assert once(root, producers[0], 1, [PRODUCERS]) == Produced(ProducedKind.STORED, 1, PRODUCERS)
        assert stored(root) == list(range(PRODUCERS + 1))
    assert file.stat().st_size == usual


def test_a_large_producers_file_still_ends_the_log_before_an_unfinished_batch(left: Left, tmp_path: Path) -> None:
    """It has more bytes than a small file (16 MiB), which the recovery once passed over without a word."""
    copy = copied(left, tmp_path / "copy", record_ends(left)[1])
    assert outgrow(copy / layout.PRODUCERS, 17 << 20) <= BYTES_MAX
    recovered = open_partition(copy, left.incarnation)
    assert [segment.records for segment in recovered.segments] == [LAST]
    assert any("begins a batch that was not stored whole" in note for note in recovered.notes)


def test_a_producers_file_that_no_reader_takes_is_named_and_the_log_is_served(left: Left, tmp_path: Path) -> None:
    copy = copied(left, tmp_path / "copy", left.log.stat().st_size)
    os.truncate(copy / layout.PRODUCERS, BYTES_MAX + 1)
    recovered = open_partition(copy, left.incarnation)
    assert [segment.records for segment in recovered.segments] == [LAST + BATCH]
    [note] = recovered.notes
    assert str(copy / layout.PRODUCERS) in note and f"{BYTES_MAX + 1} bytes" in note
