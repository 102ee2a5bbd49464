"""Unpacks fixtures, and ZIP archives of snapshots, also members that `zipfile` cannot unpack (Zstandard, xz)."""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

import zstandard

_LOCAL_HEADER_BYTES = 30
_UNPACK = {93: lambda data: zstandard.ZstdDecompressor().decompress(data), 95: lzma.decompress}


def unpack_fixture(archive: Path, target: Path) -> None:
    """A tar archive of this repository. Python 3.11 has filters from 3.11.4 on; Debian 12 has 3.11.2."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(target, filter="data")
        else:
            opened.extractall(target)


def archive_members(archive: bytes) -> list[tuple[str, bytes]]:
    """(name, content) of every member in order; AssertionError when a size or a checksum is wrong."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        found = []
        for member in opened.infolist():
            unpack = _UNPACK.get(member.compress_type)
            if unpack is None:
                content = opened.read(member)
            else:
                at = member.header_offset
                lengths = archive[at + 26 : at + _LOCAL_HEADER_BYTES]
                start = at + _LOCAL_HEADER_BYTES + lengths[0] + 256 * lengths[1] + lengths[2] + 256 * lengths[3]
                content = unpack(archive[start : start + member.compress_size])
                assert archive[at : at + 4] == b"PK\3\4" and archive[at + 8] == member.compress_type
            assert len(content) == member.file_size and zlib.crc32(content) == member.CRC, member.filename
            found.append((member.filename, content))
        return found
