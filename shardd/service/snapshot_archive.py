"""ZIP archives in memory, with every compression that GET_SNAPSHOT names (docs/protocol/system.md#get-snapshot).

`zipfile` writes the members that it can. Zstandard and xz it cannot (Python 3.11): they are written here, after
PKWARE's APPNOTE 6.3.x, methods 93 and 95. All integers little-endian, no data descriptors, no extra fields:

    local header     50 4b 03 04, version u16, flags u16, method u16, time u16, date u16, crc32 u32, compressed u32,
                     size u32, name length u16, extra length u16; name; compressed data
    central entry    50 4b 01 02, made by u16, then as above from version to extra length, comment length u16, disk u16,
                     internal attributes u16, external attributes u32, offset of the local header u32; name
    end              50 4b 05 06, disks u16 u16, entries u16 u16, bytes and offset of the central directory u32 u32,
                     comment length u16
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Final

import zstandard

from shardd.protocol.account_requests import SnapshotCompression

METHOD_ZSTD: Final = 93
METHOD_XZ: Final = 95
_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END: Final = struct.Struct("<4sHHHHIIH")
_VERSION: Final = 63  # 6.3, the first with both methods
_UTF8_NAME: Final = 1 << 11
_DATE: Final = 1 << 5 | 1  # 1980-01-01, as zipfile.ZipInfo has it
_ZIPFILE_METHODS: Final = {
    SnapshotCompression.STORED: zipfile.ZIP_STORED,
    SnapshotCompression.DEFLATED: zipfile.ZIP_DEFLATED,
    SnapshotCompression.BZIP2: zipfile.ZIP_BZIP2,
    SnapshotCompression.LZMA: zipfile.ZIP_LZMA,
}

Member = tuple[str, bytes]  # name, content; a name may come twice


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_XZ)


_OWN_METHODS: Final[dict[SnapshotCompression, tuple[int, Callable[[bytes], bytes]]]] = {
    SnapshotCompression.ZSTD: (METHOD_ZSTD, _zstd),
    SnapshotCompression.XZ: (METHOD_XZ, _xz),
}


def make_archive(members: list[Member], compression: SnapshotCompression) -> bytes:
    """The archive, members in their order. Blocks."""
    if compression in _OWN_METHODS:
        return _own_archive(members, *_OWN_METHODS[compression])
    method = _ZIPFILE_METHODS[compression]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def _own_archive(members: list[Member], method: int, compress: Callable[[bytes], bytes]) -> bytes:
    files, directory = bytearray(), bytearray()
    for name, content in members:
        packed, encoded = compress(content), name.encode()
        common = (
            _VERSION,
            _UTF8_NAME,
            method,
            0,
            _DATE,
            zlib.crc32(content),
            len(packed),
            len(content),
            len(encoded),
            0,
        )
        directory += _CENTRAL.pack(b"PK\1\2", _VERSION, *common, 0, 0, 0, 0, len(files)) + encoded
        files += _LOCAL.pack(b"PK\3\4", *common) + encoded + packed
    end = _END.pack(b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(files), 0)
    return bytes(files + directory + end)
