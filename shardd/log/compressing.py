"""Compressing: a sealed segment gets a file of blocks in place of its .log (docs/adr/0042-compressed-segments.md).

In three steps, so that a crash leaves one whole file or two, and deletions never meet half of a change:

- `prepare` in a helper thread, beside readers: writes .blocks and manifest under temporary names and syncs them. The
  digest of what was read has to be that of the sealed log.
- `put_in_place` on the thread that deletes segments: two renames. From then on the engine reads the new file.
- the names are synced (helper thread), then `drop_plain` on the thread that deletes segments: the .log leaves.

After a power loss between the renames either name may be there without the other: the manifest of a file that is not
there does not count (segment_reader.py), and the .log is there until both names are on the device.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec
import xxhash
from msgspec.structs import replace

from shardd.engine import _native
from shardd.log import blocks, layout
from shardd.log.blocks import BLOCK_BYTES, Codec
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import Manifest, Sealed, Stored, encode_manifest, read_manifest
from shardd.log.segment_layout import COMPRESSED, PLAIN
from shardd.log.segment_reader import layout_of, log_path, opened
from shardd.log.trash import move_to_trash
from shardd.log.verified_slices import read_passing
from shardd.runtime.throttle import Throttle

SAMPLES: Final = 16  # blocks that are tried first
SAVING: Final = 8  # at least one byte of so many is saved, or the segment stays plain
MODE: Final = 0o644  # less what the umask takes


class Outcome(Enum):
    """What became of a segment."""

    READY = "ready"  # to be put in place
    STAYS = "stays"  # it would not become smaller
    DAMAGED = "damaged"  # its bytes are not those that were sealed
    NOTHING = "nothing"  # gone, not sealed yet, compressed already


class Prepared(msgspec.Struct, frozen=True):
    """`plain_bytes` became `stored_bytes`."""

    outcome: Outcome
    plain_bytes: int = 0
    stored_bytes: int = 0


def prepare(directory: Path, start_offset: int, incarnation: int, codec: Codec, throttle: Throttle) -> Prepared:
    """Writes the files under temporary names. OSError, StoppedError, ValueError (a manifest of a later version)."""
    with ExitStack() as stack:
        try:
            here = Path(f"/proc/self/fd/{stack.enter_context(opened(directory, os.O_RDONLY | os.O_DIRECTORY))}")
            if read_incarnation(here) != incarnation or layout_of(here, start_offset) is not PLAIN:
                return Prepared(Outcome.NOTHING)
            log = stack.enter_context(opened(log_path(here, start_offset), os.O_RDONLY))
            manifest = read_manifest(here, start_offset)
        except FileNotFoundError:
            return Prepared(Outcome.NOTHING)
        sealed = None if manifest is None else manifest.sealed
        if manifest is None or sealed is None or manifest.incarnation != incarnation:
            return Prepared(Outcome.NOTHING)
        os.posix_fadvise(log, 0, 0, os.POSIX_FADV_RANDOM)
        if not _is_worth_it(log, sealed.log_bytes, codec, throttle):
            return Prepared(Outcome.STAYS, sealed.log_bytes)
        try:
            prepared, stored = _pack(here, log, manifest, sealed, codec, throttle)
            if prepared.outcome is Outcome.READY:
                end = manifest.end_offset or start_offset + sealed.count
                _write(_fresh(here, start_offset, "manifest"), encode_manifest(
                    replace(manifest, stored=stored, end_offset=end)))  # fmt: skip
            else:
                discard(here, start_offset)
        except BaseException:
            discard(here, start_offset)
            raise
        return prepared


def put_in_place(directory: Path, start_offset: int) -> bool:
    """The prepared files get their names. False: the segment was deleted, and so is what was prepared. OSError."""
    if not layout.segment_log(directory, start_offset).exists():
        discard(directory, start_offset)
        return False
    for suffix in (COMPRESSED.suffix, "manifest"):
        _fresh(directory, start_offset, suffix).replace(layout.segment_file(directory, start_offset, suffix))
    return True


def finish(directory: Path, start_offset: int) -> None:
    """What follows where no server runs. OSError, SyncFailedError."""
    layout.sync_directory(directory)
    drop_plain(directory, start_offset)


def drop_plain(directory: Path, start_offset: int) -> None:
    """The .log leaves: the new names are on the device, and nobody reads it any more. OSError."""
    with suppress(FileNotFoundError):
        move_to_trash(layout.segment_log(directory, start_offset), layout.trash_of_partition(directory), durable=False)


def discard(directory: Path, start_offset: int) -> None:
    """What was prepared is not wanted. OSError."""
    for suffix in (COMPRESSED.suffix, "manifest"):
        _fresh(directory, start_offset, suffix).unlink(missing_ok=True)


def _fresh(directory: Path, start_offset: int, suffix: str) -> Path:
    return layout.segment_file(directory, start_offset, suffix + layout.TEMPORARY_SUFFIX)


def _is_worth_it(log: int, plain_bytes: int, codec: Codec, throttle: Throttle) -> bool:
    """A few blocks from all over the log tell, before all of it is read."""
    count = blocks.block_count(plain_bytes)
    plain = stored = 0
    for number in range(0, count, max(1, count // SAMPLES)):
        block = read_passing(log, min(BLOCK_BYTES, plain_bytes - number * BLOCK_BYTES), number * BLOCK_BYTES)
        throttle.spend(len(block))
        plain, stored = plain + len(block), stored + (len(codec.pack(block)) or len(block))
    return stored <= plain - plain // SAVING


def _pack(
    here: Path, log: int, manifest: Manifest, sealed: Sealed, codec: Codec, throttle: Throttle
) -> tuple[Prepared, Stored]:
    start, size = manifest.start_offset, sealed.log_bytes
    digest, table, position = xxhash.xxh3_128(), [], blocks.data_position(size)
    target = _fresh(here, start, COMPRESSED.suffix)
    with open(target, "wb", buffering=1 << 20, opener=_private) as file:
        file.seek(position)
        for number in range(blocks.block_count(size)):
            plain = read_passing(log, min(BLOCK_BYTES, size - number * BLOCK_BYTES), number * BLOCK_BYTES)
            digest.update(plain)
            entry, stored = blocks.encode_block(number, plain, position, codec)
            file.write(stored)
            table.append(entry)
            position += len(stored)
            throttle.spend(len(plain))
        file.seek(0)
        file.write(blocks.encode_head(manifest.incarnation, start, size) + b"".join(table))
        file.flush()
        os.fsync(file.fileno())
    if digest.digest() != sealed.digest or os.fstat(log).st_size != size:
        return Prepared(Outcome.DAMAGED, size), Stored(0, b"")
    if position > size - size // SAVING:
        return Prepared(Outcome.STAYS, size), Stored(0, b"")
    return Prepared(Outcome.READY, size, position), _stored(target)


def _stored(target: Path) -> Stored:
    with opened(target, os.O_RDONLY) as file:
        size = os.fstat(file).st_size
        return Stored(size, _native.digest_file(file, size))


def _write(target: Path, content: bytes) -> None:
    with open(target, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, MODE)
