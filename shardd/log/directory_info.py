"""`<data>/info.json`: what a data directory is.

    {"magic": "shardd-data", "format_version": 2, "created_at": "<RFC 3339>"}

It is the last file that an import or a restore writes. Another magic or version stops the start. What else a later
version changes: docs/adr/0028-format-version-2.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from shardd.log import layout
from shardd.runtime.regular_files import NotRegularError, read_regular

INFO_NAME: Final = "info.json"
MAGIC: Final = "shardd-data"
IMPORTING: Final = "shardd-import"  # while an import puts partitions into their places (shardd/migration)
FORMAT_VERSION: Final = 2
EARLIEST_VERSION: Final = 1  # that is read; a server makes FORMAT_VERSION of it when it starts


class UnknownFormatError(ValueError):
    """The directory has a format that this program does not know: it must not judge or change anything in it."""


class DirectoryInfo(msgspec.Struct, frozen=True):
    """Contents of `info.json`."""

    magic: str
    format_version: int
    created_at: str


def read_info(directory: Path) -> DirectoryInfo | None:
    """None without the file. ValueError (a sentence) for one that is damaged, no data directory of this server, or of
    a version that this program does not know. OSError."""
    path = directory / INFO_NAME
    try:
        info = msgspec.json.decode(read_regular(path), type=DirectoryInfo)
    except FileNotFoundError:
        return None
    except NotRegularError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if info.magic == IMPORTING:
        raise ValueError(f"{path}: an import into this directory did not end; the same import again puts it right")
    if info.magic != MAGIC:
        raise ValueError(f"{path}: this is no data directory of shardd")
    if not EARLIEST_VERSION <= info.format_version <= FORMAT_VERSION:
        raise UnknownFormatError(
            f"{path}: format version {info.format_version} is unknown; this is version {FORMAT_VERSION}"
        )
    return info


def read_being_imported(directory: Path) -> DirectoryInfo | None:
    """That of a directory in which an import was interrupted (its magic is IMPORTING); None for any other one. OSError,
    ValueError."""
    try:
        info = msgspec.json.decode(read_regular(directory / INFO_NAME), type=DirectoryInfo)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return info if info.magic == IMPORTING else None


def check_format(directory: Path) -> None:
    """For tools that look at directories without an `info.json`, or with a damaged one, too. UnknownFormatError."""
    try:
        read_info(directory)
    except UnknownFormatError:
        raise
    except (OSError, ValueError):
        return


def raise_version(directory: Path) -> int | None:
    """Makes FORMAT_VERSION of an earlier one and returns that; None: nothing was to be done. ValueError as read_info,
    OSError."""
    info = read_info(directory)
    if info is None or info.format_version == FORMAT_VERSION:
        return None
    write_info(directory, DirectoryInfo(info.magic, FORMAT_VERSION, info.created_at))
    return info.format_version


def write_info(directory: Path, info: DirectoryInfo) -> None:
    """Durably, whole or not at all. OSError."""
    layout.write_durably(directory / INFO_NAME, msgspec.json.encode(info) + b"\n")
