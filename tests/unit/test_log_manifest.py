"""The manifest file: what is written comes back, and a flipped byte never makes it say what was not written."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash
from msgspec.structs import replace

from shardd.log import layout
from shardd.log.manifest import (
    Checkpoint,
    DamagedManifestError,
    Manifest,
    Sealed,
    UnknownManifestError,
    decode_manifest,
    encode_manifest,
    read_manifest,
    write_manifest,
)

FULL = Manifest(
    incarnation=7,
    start_offset=10,
    born_at=1_700_000_000_000_000,
    log_start_offset=3,
    checkpoint=Checkpoint(4096, 12, 100, 200),
    sealed=Sealed(8192, 24, 100, 300, bytes(range(16))),
    isolated=((12, 14), (20, 21)),
    others=((900, b"of a later version"),),
    counted_us=250,
)


@pytest.mark.parametrize("manifest", [Manifest(1, 0), replace(FULL, sealed=None), replace(FULL, checkpoint=None), FULL])
def test_what_is_written_comes_back(tmp_path: Path, manifest: Manifest) -> None:
    for durable in (False, True):
        write_manifest(tmp_path, manifest, durable=durable)
        assert read_manifest(tmp_path, manifest.start_offset) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [f"{manifest.start_offset:020}.manifest"]


def test_bytes_of_version_1() -> None:
    content = encode_manifest(Manifest(7, 10, 5, 3))
    head = b"SHRDMANI" + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"".join(n.to_bytes(8, "little") for n in (7, 10, 5, 3, 0))
    assert content == head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + bytes(128)


def test_bytes_of_a_segment_that_was_begun_with_times_ahead() -> None:
    """As the engine writes them (native/tests/test_partition_ahead.c) and as earlier versions keep them."""
    content = encode_manifest(Manifest(7, 10, 5, 3, counted_us=4))
    section = b"".join(number.to_bytes(4, "little") for number in (5, 8)) + (4).to_bytes(8, "little")
    assert content[:192] == encode_manifest(Manifest(7, 10, 5, 3))
    assert content[192:] == section + xxhash.xxh3_64_intdigest(section).to_bytes(8, "little")


def test_times_ahead_count_as_the_time_of_sealing() -> None:
    assert [FULL.counted(each, 270) for each in (100, 260, 300)] == [100, 260, 250]
    assert Manifest(7, 10).counted(300, 270) == 300


def test_missing_manifest_is_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path, 0) is None


def test_every_flipped_bit_costs_the_checkpoint_or_the_manifest() -> None:
    content = encode_manifest(FULL)
    fallen = {FULL, replace(FULL, checkpoint=None)}
    seen = set()
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        try:
            seen.add(decode_manifest(bytes(damaged)))
        except DamagedManifestError:
            continue
    assert seen == fallen


def test_every_shorter_file_is_damaged_or_without_its_last_sections() -> None:
    content = encode_manifest(FULL)
    whole = 0
    for length in range(len(content)):
        try:
            whole += decode_manifest(content[:length]) is not None
        except DamagedManifestError:
            continue
    assert whole == 4  # at the four borders before the end: only a rename makes the file longer, so none is written


def test_the_newer_checkpoint_counts_and_a_torn_one_falls_back() -> None:
    older, newer = Checkpoint(100, 1, 5, 5), Checkpoint(300, 3, 5, 9)
    first = encode_manifest(Manifest(1, 0, checkpoint=older))
    slot = bytearray(encode_manifest(Manifest(1, 0, checkpoint=newer))[64:128])
    slot[0] = 2
    slot[56:] = xxhash.xxh3_64_intdigest(bytes(slot[:56])).to_bytes(8, "little")
    assert decode_manifest(first[:128] + bytes(slot)).checkpoint == newer
    assert decode_manifest(first[:64] + bytes(slot) + first[64:128]).checkpoint == newer
    for torn in range(64):
        assert decode_manifest(first[:128] + bytes(slot[:torn]) + bytes(64 - torn)).checkpoint == older


def changed_head(position: int, value: int) -> bytes:
    head = bytearray(encode_manifest(FULL))
    head[position] = value
    head[56:64] = xxhash.xxh3_64_intdigest(bytes(head[:56])).to_bytes(8, "little")
    return bytes(head)


def test_a_later_version_or_layout_is_refused_by_name(tmp_path: Path) -> None:
    path = layout.segment_manifest(tmp_path, 10)
    for position, value, word in ((8, 3, "version is 3"), (12, 2, "layout 2")):
        path.write_bytes(changed_head(position, value))
        with pytest.raises(UnknownManifestError, match=word) as caught:
            read_manifest(tmp_path, 10)
        assert str(path) in str(caught.value)


def test_the_manifest_of_another_segment_is_none(tmp_path: Path) -> None:
    layout.segment_manifest(tmp_path, 11).write_bytes(encode_manifest(FULL))
    with pytest.raises(DamagedManifestError):
        read_manifest(tmp_path, 11)
