"""What a recovery has to know of segments whose layout was changed: nothing is appended to them, and a crash beside the
change leaves the file of the other layout."""

from __future__ import annotations

from pathlib import Path

from shardd.log import layout
from shardd.log.manifest import Manifest
from shardd.log.record_format import INDEX_ENTRY_BYTES
from shardd.log.segment_layout import PLAIN
from shardd.log.segment_reader import layout_of, left_over
from shardd.log.trash import move_to_trash


def sweep_left_over(directory: Path, starts: list[int], notes: list[str]) -> None:
    """Moves the files that nothing reads any more to the trash. The names of those that stay may have been given by a
    process that died before it synced them: that comes first. UnknownLayoutError, OSError, SyncFailedError."""
    found = [path for path in (left_over(directory, start) for start in starts) if path.exists()]
    if found:
        layout.sync_directory(directory)
        for path in found:
            move_to_trash(path, layout.trash_of_partition(directory))
            notes.append(f"{path}: left by a change of the layout of its segment, moved to the trash")


def end_of_closed(directory: Path, start: int, manifest: Manifest | None) -> int | None:
    """Where the last segment ends when nothing can be appended to it: it is sparse, or compressed; else None.
    UnknownLayoutError, OSError."""
    if manifest is not None and manifest.end_offset and (manifest.sparse or manifest.stored is not None):
        return manifest.end_offset
    if layout_of(directory, start) is PLAIN:
        return None
    return start + layout.segment_index(directory, start).stat().st_size // INDEX_ENTRY_BYTES
