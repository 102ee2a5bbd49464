"""The golden directory with log starts and compressed segments, damaged: what a block costs, what manifests cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.blocks import HEAD_BYTES
from tests.golden.make_directory import CODECS, KEPT_MESSAGES
from tests.support import golden_directory as golden
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

VERSION = "v4"
MESSAGES = 90
STREAM = 3  # "kept"
LIMITED = ("limited", "limited-plain")


def partition(data: Path, name: str) -> Path:
    return layout.partition_directory(data, STREAM, (*CODECS, *LIMITED).index(name), 0)


def served(server: Server, name: str) -> list[int]:
    """Each offset asked for by itself: those that are answered with a message."""
    found = []
    with wire.connect(server.address) as root:
        for offset in range(MESSAGES):
            try:
                messages = root.poll("kept", name, 0, value=offset, count=1).messages
            except wire.StatusError as refusal:
                assert refusal.status == 4027
                continue
            found += [each.offset for each in messages if each.offset == offset]
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_costs_the_messages_in_it(codec: str, tmp_path: Path) -> None:
    data = golden.unpack(VERSION, tmp_path)
    first, second = sorted(partition(data, codec).glob("*.blocks"))[:2]
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    with Server(data, ONE_SHARD) as server:
        assert served(server, codec) == list(range(int(second.stem), MESSAGES))


def test_heads_and_manifests_of_compressed_segments_cost_nothing(tmp_path: Path) -> None:
    data = golden.unpack(VERSION, tmp_path)
    for codec in CODECS:
        for path in partition(data, codec).glob("*.blocks"):
            content = bytearray(path.read_bytes())
            content[:HEAD_BYTES] = bytes(HEAD_BYTES)
            path.write_bytes(content)
            path.with_suffix(".manifest").unlink()
    with Server(data, ONE_SHARD) as server, wire.connect(server.address) as root:
        for codec in CODECS:
            assert [each.offset for each in root.read_all("kept", codec, 0)] == list(range(MESSAGES))


@pytest.mark.parametrize("name", LIMITED)
def test_a_damaged_slot_leaves_the_log_start_to_the_other_one_or_the_limit(name: str, tmp_path: Path) -> None:
    """What was hidden may come back until the limit is looked at; nothing else is missing."""
    data = golden.unpack(VERSION, tmp_path)
    manifest = max(partition(data, name).glob("*.manifest"))
    content = bytearray(manifest.read_bytes())
    for slot in (64, 128):
        content[slot + 40] ^= 1
    manifest.write_bytes(content)
    with Server(data, ONE_SHARD) as server:
        found = served(server, name)
        assert found == list(range(found[0], MESSAGES)) and found[0] <= MESSAGES - KEPT_MESSAGES
