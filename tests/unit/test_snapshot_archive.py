"""Archives of snapshots in every compression that the protocol names."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from shardd.protocol.account_requests import SnapshotCompression
from shardd.service.snapshot_archive import make_archive
from tests.support.archives import archive_members

MEMBERS = [("test.txt", b"test"), ("empty.txt", b""), ("test.txt", b"again"), ("logs.txt", b"line of a log\n" * 10_000)]
METHODS = {
    SnapshotCompression.STORED: 0,
    SnapshotCompression.DEFLATED: 8,
    SnapshotCompression.BZIP2: 12,
    SnapshotCompression.ZSTD: 93,
    SnapshotCompression.LZMA: 14,
    SnapshotCompression.XZ: 95,
}


@pytest.mark.parametrize("compression", SnapshotCompression)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_come_back_from_every_compression(compression: SnapshotCompression, tmp_path: Path) -> None:
    archive = make_archive(MEMBERS, compression)
    assert archive_members(archive) == MEMBERS
    path = tmp_path / "snapshot.zip"
    path.write_bytes(archive)
    with zipfile.ZipFile(path) as opened:
        assert {member.compress_type for member in opened.infolist()} == {METHODS[compression]}
    assert compression is SnapshotCompression.STORED or len(archive) < 5_000


@pytest.mark.parametrize("compression", SnapshotCompression)
def test_no_members_are_an_archive_too(compression: SnapshotCompression) -> None:
    archive = make_archive([], compression)
    assert archive == b"PK\5\6" + bytes(18)
    assert archive_members(archive) == []


def test_a_flipped_byte_is_noticed() -> None:
    archive = bytearray(make_archive([("test.txt", b"test")], SnapshotCompression.XZ))
    archive[14] ^= 1  # the checksum of the local header is not what zipfile reads, so flip the central one too
    archive[archive.rindex(b"PK\1\2") + 16] ^= 1
    with pytest.raises(AssertionError, match=r"test\.txt"):
        archive_members(bytes(archive))
