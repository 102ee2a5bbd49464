"""What is left of segments that were removed: the log leaves first, so a crash may leave its index, its manifest and
what a change of its layout had begun. They hold no message, and nothing reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.incarnation import is_of
from shardd.log.manifest import read_manifest
from shardd.log.segment_reader import segment_starts
from shardd.log.trash import move_to_trash

_BESIDE: Final = ("index", "manifest", *(f"{each}{layout.TEMPORARY_SUFFIX}" for each in ("blocks", "manifest")))


def removed_files(directory: Path, incarnation: int | None) -> list[Path]:
    """Files without a log, of segments before the first one, where the written log start explains that their log is
    gone; without that they may be all that is left of lost messages. None of a segment that is on its way to its
    archive, which takes them along. UnknownLayoutError, OSError."""
    starts = segment_starts(directory)
    found = [(start, path) for start, path in _beside(directory) if starts and start < starts[0]]
    if not found or incarnation is None or starts[0] > written_log_start(directory, starts, incarnation):
        return []
    return [path for start, path in found if not _goes_to_its_archive(directory, incarnation, start)]


def sweep_removed(directory: Path, incarnation: int, notes: list[str]) -> bool:
    """Moves them to the trash, of a partition of this incarnation; whether there were any. What cannot be moved stays
    for the next start. As above."""
    found = removed_files(directory, incarnation) if is_of(directory, incarnation) else []
    for path in found:
        try:
            move_to_trash(path, layout.trash_of_partition(directory), durable=False)
            notes.append(f"{path}: left of a segment that was removed, moved to the trash")
        except OSError as error:
            notes.append(f"{path}: left of a segment that was removed, and stays: {error}")
    return bool(found)


def _beside(directory: Path) -> Iterator[tuple[int, Path]]:
    for path in sorted(directory.iterdir()):
        stem, _, suffix = path.name.partition(".")
        named = layout.parse_segment_name(f"{stem}.log")
        if named is not None and suffix in _BESIDE and path.is_file() and not path.is_symlink():
            yield named[0], path


def written_log_start(directory: Path, starts: list[int], incarnation: int) -> int:
    """The highest log start that a whole manifest beside a log knows. OSError."""
    highest = 0
    for start in starts:
        with suppress(ValueError):  # damaged: recovery tells
            manifest = read_manifest(directory, start)
            if manifest is not None and manifest.incarnation == incarnation:
                highest = max(highest, manifest.log_start)
    return highest


def _goes_to_its_archive(directory: Path, incarnation: int, start: int) -> bool:
    """The incarnation tells the partition, too."""
    incoming = layout.incoming_directory(directory.parents[5])
    return any(incoming.glob(f"*.{incarnation}-{start:0{layout.START_OFFSET_DIGITS}d}.*"))
