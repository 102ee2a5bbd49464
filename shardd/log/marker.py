"""What the small marker files of a partition share: 8 bytes of magic, the last one the version as a digit."""

from __future__ import annotations

from pathlib import Path


class UnknownMarkerError(ValueError):
    """A later version made the file: nobody here knows what the directory is, so it is not to be touched."""


def check_version(path: Path, content: bytes, magic: bytes) -> None:
    """UnknownMarkerError for the magic of a later version. Whatever else is wrong is the caller's to judge."""
    known, version = magic[-1:], content[len(magic) - 1 : len(magic)]
    if content.startswith(magic[:-1]) and version.isdigit() and version > known:
        raise UnknownMarkerError(
            f"{path} has format version {version.decode()}, which this program does not know; it knows "
            f"{known.decode()} and leaves the partition untouched"
        )
