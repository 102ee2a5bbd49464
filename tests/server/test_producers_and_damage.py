"""Producers over a power loss in a partition of which something is damaged: they are forgotten if a batch of theirs is
withheld, and not for what somebody else's messages have lost (shardd/log/unproven_tail.py)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.recovery import open_partition
from shardd.protocol.producers import Produced, ProducedKind, ProducerEpoch
from shardd.worker.producers import FILE_NAME
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import identified
from tests.server.test_retention import create_topic
from tests.server.test_unfinished_batches import become_of_another_boot
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

PLAIN, BATCH, BATCHES = 5, 5, 3


class Stopped(NamedTuple):
    """In order, so that the log and the file of producers prove each other."""

    server: Server
    directory: Path
    who: ProducerEpoch
    incarnation: int
    ends: list[int]  # of the log, in bytes, behind the plain messages and behind each batch


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    server = Server(tmp_path / "data", env=ONE_SHARD)
    directory = layout.partition_directory(server.data_dir, 0, 0, 0)
    log = layout.segment_log(directory, 0)
    with server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        root.send("s", "t", wire.to_partition(0), [identified(number) for number in range(PLAIN)])
        ends, who = [log.stat().st_size], init(root)
        for sequence in range(BATCHES):
            assert once(root, who, sequence, numbers(sequence)) == stored_at(sequence)
            ends.append(log.stat().st_size)
    incarnation = read_incarnation(directory)
    assert incarnation is not None
    return Stopped(server, directory, who, incarnation, ends)


def numbers(sequence: int) -> list[int]:
    first = PLAIN + BATCH * sequence
    return list(range(first, first + BATCH))


def stored_at(sequence: int, kind: ProducedKind = ProducedKind.STORED) -> Produced:
    return Produced(kind, BATCH, PLAIN + BATCH * sequence)


def damage(stopped: Stopped, at: int) -> None:
    for manifest in stopped.directory.glob("*.manifest"):
        manifest.unlink()  # recovery reads nothing that a checkpoint covers
    log = layout.segment_log(stopped.directory, 0)
    content = bytearray(log.read_bytes())
    content[at] ^= 0xFF
    log.write_bytes(content)


def lose_power(stopped: Stopped) -> None:
    become_of_another_boot(stopped.directory, stopped.incarnation)
    (stopped.server.data_dir / FILE_NAME).unlink(missing_ok=True)  # of this boot


def test_producers_are_known_beside_damage_that_is_not_theirs(stopped: Stopped) -> None:
    damage(stopped, stopped.ends[0] // PLAIN + 20)
    for _ in range(2):  # the damage stays
        lose_power(stopped)
        assert open_partition(stopped.directory, stopped.incarnation).damaged
        assert (stopped.directory / layout.PRODUCERS).exists()
    with stopped.server, wire.connect(stopped.server.address) as root:
        assert root.poll("s", "t", 0, value=2, count=1).messages[0].offset >= 2
        for sequence in range(BATCHES):
            told = once(root, stopped.who, sequence, numbers(sequence))
            assert told == stored_at(sequence, ProducedKind.DUPLICATE)
        assert once(root, stopped.who, BATCHES, numbers(BATCHES)).kind is ProducedKind.STORED


@pytest.mark.parametrize("batch", range(BATCHES))
def test_producers_of_whom_a_batch_is_withheld_are_forgotten(stopped: Stopped, batch: int) -> None:
    damage(stopped, stopped.ends[batch] + 20)
    lose_power(stopped)
    with stopped.server, wire.connect(stopped.server.address) as root:
        told = once(root, stopped.who, batch, numbers(batch))
        assert told.kind is ProducedKind.UNKNOWN_PRODUCER
        assert once(root, init(root), 0, [0]).kind is ProducedKind.STORED
