"""A producer goes on over everything that takes messages away: deleted segments, retention with compression, a purge,
isolated damage, a restore. What it has sent before is never stored again, and it is never told that it is when it is
not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardd.backup.create import create_backup
from shardd.backup.restore import restore_backup
from shardd.cli.main import app
from shardd.log import layout
from shardd.log.segment_reader import segment_starts
from shardd.protocol.account_requests import DeleteSegments
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from tests.server.test_idempotent_producers import init
from tests.server.test_message_deduplication import change, identified, restarted, wait_for_start
from tests.server.test_retention import create_topic
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

SEGMENT_BYTES = 4096
ENV = ONE_SHARD | {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "SHARDD_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
}
BATCHES = 48
MESSAGES = 5
PAYLOAD = b" " * 300
UNKNOWN = Produced(ProducedKind.UNKNOWN_PRODUCER, 0, 0)


def send(root: wire.Wire, who: ProducerEpoch, sequence: int) -> Produced:
    batch = wire.batch("s", "t", wire.to_partition(0), [identified(n, PAYLOAD) for n in range(1, MESSAGES + 1)])
    head = send_once_head(who.producer, who.epoch, sequence)
    answer = root.request(ExtensionCode.SEND_ONCE, head + batch)
    return Produced.read(Reader(answer))


def fill(server: Server, **settings: str) -> ProducerEpoch:
    with wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        if settings:
            assert change(root, **settings) == 0
        who = init(root)
        for sequence in range(BATCHES):
            assert send(root, who, sequence) == Produced(ProducedKind.STORED, MESSAGES, MESSAGES * sequence)
    return who


def goes_on(root: wire.Wire, who: ProducerEpoch, sequence: int) -> None:
    """All of the window are known, what is left out is told, and the next one is stored behind them."""
    for again in range(sequence - 32, sequence):
        assert send(root, who, again) == Produced(ProducedKind.DUPLICATE, MESSAGES, MESSAGES * again)
    assert send(root, who, sequence + 1) == Produced(ProducedKind.GAP, 0, sequence)
    assert send(root, who, sequence) == Produced(ProducedKind.STORED, MESSAGES, MESSAGES * sequence)


def test_segments_that_are_deleted_take_nothing_of_what_is_known(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ENV) as server:
        who = fill(server)
        with wire.connect(server.address) as root:
            root.request(Code.DELETE_SEGMENTS, DeleteSegments("s", "t", 0, 10).encode())
            assert root.poll("s", "t", 0, strategy=wire.POLL_FIRST, count=1).messages[0].offset > MESSAGES
            goes_on(root, who, BATCHES)
        restarted(server, signal.SIGKILL)
        with wire.connect(server.address) as root:
            goes_on(root, who, BATCHES + 1)


@pytest.mark.parametrize("codec", ["none", "zstd:1"])
def test_retention_and_compression_take_nothing_of_what_is_known(tmp_path: Path, codec: str) -> None:
    with Server(tmp_path / "data", ENV) as server:
        who = fill(server, compression=codec, retention="on", partition_messages_max="60")
        with wire.connect(server.address) as root:
            wait_for_start(root)
            goes_on(root, who, BATCHES)
        restarted(server, signal.SIGKILL)
        with wire.connect(server.address) as root:
            goes_on(root, who, BATCHES + 1)


def test_a_purge_forgets_and_the_next_epoch_begins_at_the_front(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ENV) as server:
        who = fill(server)
        with wire.connect(server.address) as root:
            root.purge_topic("s", "t")
            assert send(root, who, BATCHES) == UNKNOWN
            who = init(root, who.producer)
            assert send(root, who, 0) == Produced(ProducedKind.STORED, MESSAGES, 0)
            assert send(root, who, 0) == Produced(ProducedKind.DUPLICATE, MESSAGES, 0)
        restarted(server, signal.SIGKILL)
        with wire.connect(server.address) as root:
            assert send(root, who, 0) == Produced(ProducedKind.DUPLICATE, MESSAGES, 0)
            assert send(root, who, 1) == Produced(ProducedKind.STORED, MESSAGES, MESSAGES)


def test_isolated_damage_takes_messages_and_not_what_is_known(tmp_path: Path) -> None:
    """A batch that was stored and then damaged is not stored again: it was acknowledged, and its place is withheld."""
    with Server(tmp_path / "data", ENV) as server:
        who = fill(server)
    directory = layout.partition_directory(tmp_path / "data", 0, 0, 0)
    log = layout.segment_log(directory, segment_starts(directory)[-2])
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    repaired = CliRunner().invoke(app, ["doctor", "log", str(tmp_path / "data"), "--repair", "--yes"])
    assert repaired.exit_code == 0 and "isolated in" in repaired.output, repaired.output
    with Server(tmp_path / "data", ENV) as server, wire.connect(server.address) as root:
        found = root.poll("s", "t", 0, strategy=wire.POLL_FIRST, count=1000).messages
        assert len(found) == BATCHES * MESSAGES - 1
        goes_on(root, who, BATCHES)


def test_a_restore_ends_every_epoch(tmp_path: Path) -> None:
    """The restored server does not know what was sent after the backup, nor which epochs began after it: none of them
    may be mistaken for a new one of the same number."""
    with Server(tmp_path / "data", ENV) as server:
        who = fill(server)
        made = create_backup(server.data_dir, tmp_path / "backups")
        with wire.connect(server.address) as root:
            assert send(root, who, BATCHES).kind is ProducedKind.STORED
            later = init(root, who.producer)
            assert send(root, later, 0).kind is ProducedKind.STORED
            after = init(root)
    restore_backup(made.path, tmp_path / "restored")
    with Server(tmp_path / "restored", ENV) as server, wire.connect(server.address) as root:
        for ended, sequence in ((who, BATCHES - 1), (who, BATCHES), (who, BATCHES + 1), (later, 0), (later, 1)):
            assert send(root, ended, sequence).kind is ProducedKind.STALE_EPOCH
        assert send(root, after, 0) == UNKNOWN
        assert root.status(ExtensionCode.INIT_PRODUCER, InitProducer(who.producer, who.epoch, True).encode()) == 30
        fresh = init(root, who.producer)
        assert fresh.epoch > later.epoch + 1 and init(root).producer > after.producer
        assert send(root, later, 0) == Produced(ProducedKind.STALE_EPOCH, fresh.epoch, 0)
        assert send(root, fresh, 0) == Produced(ProducedKind.STORED, MESSAGES, MESSAGES * BATCHES)
        assert send(root, later, 0) == Produced(ProducedKind.STALE_EPOCH, fresh.epoch, 0)
        assert root.poll("s", "t", 0, value=0, count=1).current_offset == MESSAGES * (BATCHES + 1) - 1
