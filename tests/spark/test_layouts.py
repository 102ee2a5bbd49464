"""Cold reads of a segment whose manifest names a layout that this version does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from shardd.log import layout
from shardd.log.manifest import UnknownLayoutError, encode_manifest
from shardd.spark import cold
from tests.spark.test_decode import decoder
from tests.unit import log_files


@pytest.mark.parametrize("suffix", ["log", "blocks"])
def test_a_cold_read_refuses_a_layout_by_its_name(tmp_path: Path, suffix: str) -> None:
    stored = log_files.segment(0, [3])
    directory = tmp_path / "0"
    log_files.write(directory, stored)
    content = encode_manifest(log_files.manifest_of(stored, 3))
    head = content[:12] + bytes([2]) + content[13:56]
    layout.segment_manifest(directory, 0).write_bytes(
        head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + content[64:]
    )
    log = layout.segment_log(directory, 0)
    log.rename(log.with_suffix(f".{suffix}"))
    rows = cold.read(decoder(), log, segment_start=0, incarnation=log_files.INCARNATION, start=0, end=3, label="p")
    with pytest.raises(UnknownLayoutError, match=r"manifest: this version does not know layout 2 \(encrypted\)"):
        list(rows)
