"""Which segments a partition directory has, and what in it is not ours."""

from __future__ import annotations

from pathlib import Path

from shardd.log import layout
from shardd.log.segment_reader import layout_of

_OWN_FILES = (
    *(
        name + suffix
        for name in (layout.INCARNATION, layout.IMPORTED, layout.CONSUMER_OFFSETS, layout.PRODUCERS)
        for suffix in ("", layout.TEMPORARY_SUFFIX)
    ),
    layout.PRODUCERS_UNREADABLE,
)
_OWN_DIRECTORIES = (layout.OFFSETS, layout.OFFSETS_KEPT)
_FRESH = tuple(suffix + layout.TEMPORARY_SUFFIX for suffix in (".manifest", ".blocks"))


def list_segments(directory: Path, notes: list[str]) -> list[int]:
    """Start offsets of the logs, ascending; everything that is not ours goes into the notes. UnknownLayoutError."""
    found: dict[str, list[int]] = {"log": [], "blocks": [], "index": [], "manifest": [], "torn": []}
    for path in sorted(directory.iterdir()):
        parsed = layout.parse_segment_name(path.name)
        if parsed is not None and path.is_file() and not path.is_symlink():
            found[parsed[1]].append(parsed[0])
        elif path.name.endswith(_FRESH) and layout.parse_segment_name(path.stem) is not None:
            continue  # cut short before its rename; the next one writes over it
        elif path.name not in _OWN_FILES and not (
            path.name in _OWN_DIRECTORIES and path.is_dir() and not path.is_symlink()
        ):
            notes.append(f"{path}: not a file of this server, ignored")
    starts = sorted({*found["log"], *found["blocks"]})
    known = set(starts)
    for start in found["index"]:
        if start not in known:
            notes.append(f"{layout.segment_index(directory, start)}: index without a log, ignored")
    for start in found["manifest"]:
        if start not in known:
            layout_of(directory, start)  # of a layout that is not known the records are elsewhere, and not lost
        # behind the last log: the birth of the next segment was cut short, its next try writes over it
        if start not in known and starts and start < starts[-1]:
            notes.append(f"{layout.segment_manifest(directory, start)}: manifest without a log, ignored")
    return starts
