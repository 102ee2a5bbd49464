"""The file of producers has one bound for its writer and one for all of its readers, and a file that an earlier version
let grow without a bound is still believed (native/src/log/producers.h)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from shardd.engine import _native
from shardd.log import layout
from shardd.log.recovery import open_partition
from shardd.log.unproven_tail import BYTES_MAX
from shardd.metadata.producers import PRODUCERS_OF_USER_MAX
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch
from tests.server.test_idempotent_producers import init, once, payload_of
from tests.server.test_message_deduplication import identified, stored
from tests.server.test_producer_shares import login, pipelined
from tests.server.test_retention import create_topic
from tests.server.test_revocation import EVERYTHING, create_user, delete_user
from tests.server.test_unfinished_batches import BATCH, LAST, Left, copied, left, record_ends
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

__all__ = ["left"]  # a fixture
HEAD_BYTES = 128
PLACES = 8192  # of a file whose writer keeps to its bound
PRODUCERS = 3
ENTRY_BYTES = (_native.PRODUCERS_FILE_BYTES_MAX - HEAD_BYTES) // PLACES


def outgrow(file: Path, bytes_min: int) -> int:
    """Puts free places before the entries, as many as forgotten producers left in earlier versions."""
    content = file.read_bytes()
    empty = -(-bytes_min // ENTRY_BYTES) * ENTRY_BYTES
    file.write_bytes(content[:HEAD_BYTES] + bytes(empty) + content[HEAD_BYTES:])
    return file.stat().st_size


SERVER: Final = Serving(env=ONE_SHARD)


def kill(server: Server) -> None:
    for pid in (server.pid, *server.running_workers().values()):
        os.kill(pid, signal.SIGKILL)
    server.stop()


def test_a_producers_file_beyond_the_writers_bound_serves_everything(own_server: Server) -> None:
    file = layout.partition_directory(own_server.data_dir, 0, 0, 0) / layout.PRODUCERS
    with wire.connect(own_server.address) as root:
        root.create_stream("s")
        create_topic(root)
        producers = [init(root) for _ in range(PRODUCERS)]
        for number, who in enumerate(producers):
            assert once(root, who, 0, [number]) == Produced(ProducedKind.STORED, 1, number)
    kill(own_server)
    usual = file.stat().st_size
    assert outgrow(file, _native.PRODUCERS_FILE_BYTES_MAX) > _native.PRODUCERS_FILE_BYTES_MAX
    own_server.start()
    with wire.connect(own_server.address) as root:
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


def test_producers_of_deleted_users_leave_their_places_and_no_start_refuses_the_file(own_server: Server) -> None:
    """More of them than a partition knows at a time, one batch each; then one more producer sends."""
    rounds = _native.PRODUCERS_FILE_BYTES_MAX // ENTRY_BYTES // PRODUCERS_OF_USER_MAX
    with wire.connect(own_server.address) as root:
        root.create_stream("s")
        create_topic(root)
        for number in range(rounds):
            create_user(root, f"user {number}", EVERYTHING)
            with login(own_server, f"user {number}") as client:
                asked = [InitProducer(0, 0, False).encode()] * PRODUCERS_OF_USER_MAX
                answers = pipelined(client, ExtensionCode.INIT_PRODUCER, asked)
                begun = [ProducerEpoch.read(Reader(answer)) for answer in answers]
                first = number * PRODUCERS_OF_USER_MAX
                sends = [payload_of(who, 0, [first + place]) for place, who in enumerate(begun)]
                pipelined(client, ExtensionCode.SEND_ONCE, sends)
            delete_user(root, f"user {number}")
        last, total = init(root), rounds * PRODUCERS_OF_USER_MAX
        assert once(root, last, 0, [total]) == Produced(ProducedKind.STORED, 1, total)
    file = layout.partition_directory(own_server.data_dir, 0, 0, 0) / layout.PRODUCERS
    assert file.stat().st_size <= _native.PRODUCERS_FILE_BYTES_MAX
    kill(own_server)
    own_server.start()
    with wire.connect(own_server.address) as root:
        assert stored(root) == list(range(total + 1))
        assert once(root, last, 0, [total]) == Produced(ProducedKind.DUPLICATE, 1, total)
        root.send("s", "t", wire.to_partition(0), [identified(total + 1)])
