"""What a backup is on disk.

    <DIR>/<UTC time, 20261121T153000.123456Z>/
        backup.json                    everything about the backup; written last
        state.messages, state.snapshot metadata, as in a data directory (only whole records)
        streams/<stream>/topics/<topic>/partitions/<partition>/
            <start offset, 20 digits>.log       whole valid records; a damaged segment as it was found
            <start offset, 20 digits>.manifest  as it was, when the segment had one
    <DIR>/<UTC time>.incomplete/       being made, or left by a killed run: the next run removes it
        in-progress                    "shardd-backup-in-progress" and a line feed
    <DIR>/.lock                        flock'ed while a backup is being made

A directory is a backup only without that suffix and with a valid backup.json: it loses the suffix by a rename, when
everything in it is on the device. It may be copied and renamed as a whole. Indexes are not kept (they are made from the
logs), stored offsets and markers of partitions stand in backup.json.

backup.json is the JSON of `Backup`, exactly as encoded here and a line feed; `digest` is "sha256:" and the SHA-256 of
the same text with an empty digest, so a change of any byte shows. Digests of files are "xxh3-128:" and 32 hex digits.
Another magic or format version is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from shardd.log import layout
from shardd.log.layout import PartitionIds
from shardd.log.offsets_table import StoredOffset
from shardd.runtime.regular_files import read_regular

MAGIC: Final = "shardd-backup"
FORMAT_VERSION: Final = 1
SECOND_VERSION: Final = 2  # of a directory of version 2, or with a segment that earlier programs take for damaged
THIRD_VERSION: Final = 3  # with times, users and names of stored offsets
BACKUP_NAME: Final = "backup.json"
BACKUP_BYTES_MAX: Final = 1 << 30  # of that file
INCOMPLETE_SUFFIX: Final = ".incomplete"
LINKED: Final = "linked"
COPIED: Final = "copied"
SHARED: Final = "shared"


class BackupError(Exception):
    """Why a backup cannot be made, read or restored; the text is a sentence."""


class _Head(msgspec.Struct, frozen=True):
    magic: str
    format_version: int


class FileEntry(msgspec.Struct, frozen=True):
    """A file that is kept as a whole."""

    bytes: int
    digest: str


class SourceFile(msgspec.Struct, frozen=True):
    """Which file of the server a sealed segment was: the next backup need not read one that is still the same."""

    device: int
    inode: int
    modified_ns: int


class SegmentEntry(msgspec.Struct, frozen=True):
    """A .log file, of which the first `bytes` count. `end_offset` (exclusive) is behind the valid records that it
    begins with; `damage` tells what follows them, else it is empty. `source` only of sealed segments. `records`: of a
    segment that has none for some of its offsets (only with SECOND_VERSION); unset: one for each."""

    start_offset: int
    end_offset: int
    bytes: int
    digest: str
    kept: str
    source: SourceFile | None = None
    manifest: FileEntry | None = None
    damage: str = ""
    records: int | msgspec.UnsetType = msgspec.UNSET  # not even named where it is not set: as in version 1

    @property
    def sparse_end(self) -> int:
        """Up to there offsets may have no record; 0: every one has."""
        return 0 if self.records is msgspec.UNSET else self.end_offset

    @property
    def count(self) -> int:
        """Records that it has."""
        return self.end_offset - self.start_offset if isinstance(self.records, msgspec.UnsetType) else self.records


class OffsetEntry(NamedTuple):
    """`value`: the last processed offset; see log/stored_offsets.py."""

    kind: int
    id: int
    value: int


class OffsetUse(NamedTuple):
    """When it was last used, the user for whom it counts, the hash of the consumer's name; see log/offsets_table.py."""

    used_us: int
    owner: int
    name: int


_UNUSED: Final = OffsetUse(0, 0, 0)


class PartitionEntry(msgspec.Struct, frozen=True):
    """`imported_end`: see log/imported.py.
    A partition that holds nothing has no segments and no directory."""

    stream: int
    topic: int
    partition: int
    incarnation: int
    start_offset: int = 0
    end_offset: int = 0
    imported_end: int = 0
    offsets: list[OffsetEntry] = []
    uses: list[OffsetUse] | msgspec.UnsetType = msgspec.UNSET  # of `offsets`, in their order; unset: of none is known
    segments: list[SegmentEntry] = []

    @property
    def stored_offsets(self) -> list[StoredOffset]:
        uses = [_UNUSED] * len(self.offsets) if isinstance(self.uses, msgspec.UnsetType) else self.uses
        return [StoredOffset(*each, *use) for each, use in zip(self.offsets, uses, strict=True)]

    @property
    def ids(self) -> PartitionIds:
        return self.stream, self.topic, self.partition


class MetadataEntry(msgspec.Struct, frozen=True):
    """`index`: the last record. None for a file that there was not."""

    index: int
    log: FileEntry | None
    snapshot: FileEntry | None


class Backup(msgspec.Struct, frozen=True):
    """Contents of backup.json. Everything acknowledged before `began_at` is in it. `left_out`: partitions of the
    metadata that are missing, one sentence each; `warnings`: what else an operator should know."""

    magic: str
    format_version: int
    data_format_version: int
    data_created_at: str
    began_at: str
    ended_at: str
    base: str
    metadata: MetadataEntry
    partitions: list[PartitionEntry]
    left_out: list[str]
    warnings: list[str]
    digest: str = ""


def file_digest(digest: bytes) -> str:
    """Of 16 bytes of XXH3-128 (canonical, big-endian)."""
    return f"xxh3-128:{digest.hex()}"


def encode_backup(backup: Backup) -> bytes:
    """The whole file; whatever digest is in `backup` is replaced. BackupError when no reader would take it."""
    bare = msgspec.structs.replace(backup, digest="")
    digest = f"sha256:{hashlib.sha256(msgspec.json.encode(bare)).hexdigest()}"
    content = msgspec.json.encode(msgspec.structs.replace(backup, digest=digest)) + b"\n"
    if len(content) > BACKUP_BYTES_MAX:
        raise BackupError(
            f"{BACKUP_NAME} would have {len(content)} bytes and may have {BACKUP_BYTES_MAX}: delete partitions, or "
            "stored offsets that are not used any more"
        )
    return content


def read_backup(path: Path) -> Backup:
    """`path`: the directory of one backup. BackupError when it is not one, or not whole."""
    file = path / BACKUP_NAME
    if path.absolute().name.endswith(INCOMPLETE_SUFFIX):
        raise BackupError(f"{path} is no complete backup: it is being made, or its run was killed")
    try:
        data = read_regular(file, BACKUP_BYTES_MAX)
    except FileNotFoundError:
        raise BackupError(f"{path} is no complete backup: it has no {BACKUP_NAME}") from None
    except ValueError as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror}") from error
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{file} is damaged: {error}") from error
    if head.magic != MAGIC:
        raise BackupError(f"{file}: this is no backup of shardd")
    if not FORMAT_VERSION <= head.format_version <= THIRD_VERSION:
        raise BackupError(
            f"{file}: format version {head.format_version} is unknown to this program, which knows {FORMAT_VERSION}"
            f" to {THIRD_VERSION}"
        )
    try:
        backup = msgspec.json.decode(data, type=Backup)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{file} is damaged: {error}") from error
    if encode_backup(backup) != data:
        raise BackupError(f"{file} is damaged: its digest does not match")
    return backup


def is_backup_name(name: str) -> bool:
    """Whether it is the name that a complete backup gets: digits of the time, T, Z."""
    return name.endswith("Z") and name[:-1].replace("T", "", 1).replace(".", "", 1).isdecimal()


def partition_path(backup: Path, ids: PartitionIds) -> Path:
    """Directory of a partition inside a backup: as in a data directory."""
    return layout.partition_directory(backup, *ids)
