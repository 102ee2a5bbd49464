"""A batch of a producer may come with a digest of its content: the same number with other content is told, whatever was
restarted in between (docs/adr/0132-content-digests.md)."""

from __future__ import annotations

import json
import os
import signal
import struct
import tarfile
from pathlib import Path

from shardd.log import layout
from shardd.log.unfinished_batch import is_of_boot
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import Produced, ProducedKind, ProducerEpoch, send_once_digest_head
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import identified, stored
from tests.server.test_retention import create_topic
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import Wire

GOLDEN = Path(__file__).parents[1] / "golden/data"
PARTITION = Path("streams/0/topics/0/partitions/0")
HEAD_BYTES, ENTRY_HEAD_BYTES, SLOTS = 128, 64, 40
PARTITIONS = 8  # some are served by another worker than the one with the connection


def told(
    root: Wire, who: ProducerEpoch, sequence: int, numbers: list[int], digest: int, partition: int = 0
) -> Produced:
    send = wire.batch("s", "t", wire.to_partition(partition), [identified(number) for number in numbers])
    head = send_once_digest_head(who.producer, who.epoch, sequence, digest)
    return Produced.read(Reader(root.request(ExtensionCode.SEND_ONCE_DIGEST, head + send)))


def test_other_content_under_a_stored_number_is_refused_also_after_a_kill(own_server: Server) -> None:
    with wire.connect(own_server.address) as root:
        root.create_stream("s")
        create_topic(root, partitions=PARTITIONS)
        who = init(root)
        for partition in range(PARTITIONS):
            assert told(root, who, 0, [1, 2], 77, partition) == Produced(ProducedKind.STORED, 2, 0)
            assert once(root, who, 1, [3], partition) == Produced(ProducedKind.STORED, 1, 2)
    for restart in (False, True):
        if restart:
            for pid in (own_server.pid, *own_server.running_workers().values()):
                os.kill(pid, signal.SIGKILL)
            own_server.stop()
            own_server.start()
        with wire.connect(own_server.address) as root:
            for partition in range(PARTITIONS):
                assert told(root, who, 0, [4, 5], 78, partition) == Produced(ProducedKind.DIFFERENT_CONTENT, 2, 0)
                assert told(root, who, 0, [1, 2], 77, partition) == Produced(ProducedKind.DUPLICATE, 2, 0)
                assert told(root, who, 0, [1, 2], 0, partition) == Produced(ProducedKind.DUPLICATE, 2, 0)
                assert once(root, who, 0, [1, 2], partition) == Produced(ProducedKind.DUPLICATE, 2, 0)
                assert told(root, who, 1, [9], 78, partition) == Produced(ProducedKind.DUPLICATE, 1, 2)
                assert stored(root, partition) == [1, 2, 3]


def test_a_head_without_its_digest_is_refused(own_server: Server) -> None:
    with wire.connect(own_server.address) as root:
        root.create_stream("s")
        create_topic(root)
        head = send_once_digest_head(init(root).producer, 0, 0, 7)
        assert root.status(ExtensionCode.SEND_ONCE_DIGEST, head[:27]) == 3
        assert root.status(ExtensionCode.SEND_ONCE_DIGEST, bytes(28) + head[28:]) == 3


def slots_of(content: bytes) -> dict[int, list[tuple[int, int, int, int]]]:
    """Sequence, first offset, messages and epoch of the slots of each producer."""
    version, entry_bytes = struct.unpack_from("<II", content, 8)
    slot_bytes = (entry_bytes - ENTRY_HEAD_BYTES) // SLOTS
    assert slot_bytes == {2: 32, 3: 64}[version]
    found = {}
    for entry in range(HEAD_BYTES, len(content), entry_bytes):
        (producer,) = struct.unpack_from("<Q", content, entry)
        slots = range(entry + ENTRY_HEAD_BYTES, entry + entry_bytes, slot_bytes)
        each = [struct.unpack_from("<QQII", content, at) for at in slots]
        found[producer] = sorted(slot for slot in each if slot[2])
    return found


def test_a_file_of_version_2_is_taken_over_whole(tmp_path: Path) -> None:
    """Written by the last program that wrote this version, in another boot of another machine."""
    recorded = json.loads((GOLDEN / "producers-v2.json").read_text())
    data = tmp_path / "data"
    with tarfile.open(GOLDEN / "producers-v2.tar.xz") as files:
        files.extractall(data, filter="data")
    file = data / PARTITION / layout.PRODUCERS
    before = file.read_bytes()
    incarnation = int.from_bytes(before[16:24], "little")
    assert is_of_boot(before, incarnation, before[32:48])
    with Server(data, ONE_SHARD) as server, wire.connect(server.address) as root:
        assert stored(root) == list(range(recorded["messages"]))
        after = file.read_bytes()
        assert int.from_bytes(after[8:12], "little") == 3
        assert is_of_boot(after, incarnation, after[32:48])
        known = slots_of(before)
        epochs = {each["producer"]: each["epoch"] for each in recorded["producers"]}
        assert slots_of(after) == {
            producer: [slot for slot in slots if slot[3] == epochs[producer]] for producer, slots in known.items()
        }
        assert [max(known[each["producer"]])[:2] for each in recorded["producers"]] == [
            (each["next"] - 1, each["last"]) for each in recorded["producers"]
        ]
