"""What of a partition has left its log and is on its way to the archive, or there."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shardd.log import layout, spool
from shardd.log.incarnation import read_incarnation


class Archive:
    """Of a server with this data directory, which copies segments to `target`."""

    def __init__(self, data: Path, target: Path) -> None:
        self.data, self.target = data, target

    def files(self, place: tuple[int, int]) -> str:
        """Of a partition that has not left its log, with their sizes, for a finding."""
        with contextlib.suppress(OSError):
            partition = layout.partition_directory(self.data, 0, *place)
            return ", ".join(f"{each.name} {each.stat().st_size}" for each in sorted(partition.iterdir()))
        return "which cannot be listed"

    def hole(self, place: tuple[int, int], first: int, end: int) -> int | None:
        """The first offset of [first, end) that is in no archive and on no way there. `place`: topic and partition of
        the only stream. A segment goes from one place to the next: they are looked at in this order, the directory of
        the partition first, because files follow after their messages are hidden."""
        partition = layout.partition_directory(self.data, 0, *place)
        incarnation = read_incarnation(partition)
        ids = (0, *place)
        found: set[tuple[int, int]] = set()
        here = {int(path.stem) for path in partition.iterdir() if path.suffix in (".log", ".blocks")}
        incoming = spool.incoming(self.data)
        waiting = sorted(here | {each.start for each in incoming if (each.ids, each.incarnation) == (ids, incarnation)})
        for directory in (spool.spool_directory(self.data), self.target):
            for entry in spool.entries(directory):
                with contextlib.suppress(FileNotFoundError):
                    said = spool.read_entry(entry)
                    if ((said.stream.id, said.topic.id, said.partition), said.incarnation) == (ids, incarnation):
                        found.add((said.start, said.end))
        starts = sorted({*waiting, *(start for start, _ in found)})
        at = first
        for start, until in sorted(found | {(start, start) for start in waiting}):
            if start > at:
                return at
            at = max(at, until)
            if start in waiting:
                at = max(at, min((other for other in starts if other > start), default=end))
        return at if at < end else None
