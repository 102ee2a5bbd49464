"""The options of an import, and its result."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shardd.migration.liftbridge.log import Damage
from shardd.migration.liftbridge.partition import PartitionFigures


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """By the names that streams have in the source: `subjects`, `names` (new ones), `only` (empty: all), `plain` (not
    encrypted, whatever their values look like). `salvage`: what is whole of a damaged partition is taken."""

    namespace: str
    segment_bytes_max: int
    subjects: dict[str, str] = {}
    names: dict[str, str] = {}
    only: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    salvage: bool = False
    dry_run: bool = False


class Outcome(StrEnum):
    IMPORTED = "imported"
    CHECKED = "checked"  # of a dry run: it would be imported
    LEFT_OUT = "left out"


class StreamReport(msgspec.Struct):
    """`subject_from`: see `Subject`, or "metadata". `why`: it was left out. `damage`: for which; with `salvage` that of
    what was taken stands in the figures."""

    source: str
    name: str
    outcome: Outcome
    why: str = ""
    subject: str = ""
    subject_from: str = ""
    partitions: list[PartitionFigures] = []
    damage: list[Damage] = []

    @property
    def messages(self) -> int:
        return sum(figures.messages for figures in self.partitions)


class ImportReport(msgspec.Struct):
    """`again`: partitions that an interrupted import had ready."""

    source: str
    data: str
    namespace: str
    dry_run: bool
    streams: list[StreamReport] = []
    again: int = 0

    @property
    def left_out(self) -> list[StreamReport]:
        return [stream for stream in self.streams if stream.outcome is Outcome.LEFT_OUT]
