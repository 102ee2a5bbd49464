"""Reads the ZIP archives of snapshots, also the members that `zipfile` cannot unpack (Zstandard, xz)."""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib

import zstandard

_LOCAL_HEADER_BYTES = 30
_UNPACK = {93: lambda data: zstandard.ZstdDecompressor().decompress(data), 95: lzma.decompress}


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
