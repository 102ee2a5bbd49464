"""Messages that were asked for and are gone: told, or with `failOnDataLoss=false` accepted, counted and logged."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final

from shardd.spark.positions import TopicName

_log = logging.getLogger(__name__)
_WAY_OUT: Final = (
    "To go on without them set failOnDataLoss=false; to start elsewhere use a new checkpoint with startingOffsets"
)


class DataLossError(RuntimeError):
    """Messages that were asked for are gone; the message says which and how to go on."""


class ForeignIncarnationError(LookupError):
    """What is there now under the same name is another history: purged, made anew or restored."""


class HistoryGoneError(LookupError):
    """Offsets that are not there any more. `kept`: the first one behind them that is; None when there is none. `gone`:
    the first of them, where it is known. `isolated`: an operator has taken them out of reach."""

    def __init__(self, what: str, kept: int | None, gone: int | None = None, *, isolated: bool = False) -> None:
        super().__init__(what)
        self.kept = kept
        self.gone = gone
        self.isolated = isolated


@dataclass(slots=True)
class Absences:
    """What a task left out. `lost`: offsets [start, end) before others that it has read; `ended`: all from one on.
    What has no row beside them is explained: there is no message."""

    lost: list[tuple[int, int]] = field(default_factory=list)
    ended: bool = False


class Losses:
    """What was lost in one plan, or one task, by partition. `quiet`: without warnings, somebody else gives them."""

    def __init__(self, *, accepted: bool, quiet: bool = False) -> None:
        self._accepted = accepted
        self._quiet = quiet
        self._counts: dict[TopicName, dict[int, int]] = {}

    def add(self, name: TopicName, partition: int, messages: int | None, what: str) -> None:
        """`messages` None: nobody can know how many. `DataLossError` unless losses are accepted."""
        said = f"partition {partition} of '{name}' {what}"
        if not self._accepted:
            raise DataLossError(f"{said}. {_WAY_OUT}")
        self._count(name, partition, messages or 0)
        if self._quiet:
            return
        number = "an unknown number of" if messages is None else str(messages)
        _log.warning("data loss accepted (failOnDataLoss=false), %s messages: %s", number, said)

    def _count(self, name: TopicName, partition: int, messages: int) -> None:
        counts = self._counts.setdefault(name, {})
        counts[partition] = counts.get(partition, 0) + messages

    def __add__(self, other: Losses) -> Losses:
        both = Losses(accepted=self._accepted)
        for each in (self, other):
            for name, counts in each._counts.items():
                for partition, messages in counts.items():
                    both._count(name, partition, messages)
        return both

    def to_json(self) -> dict[str, Any]:
        """{"stream/topic": {"partition": messages}}."""
        return {str(name): {str(n): lost for n, lost in sorted(each.items())} for name, each in self._counts.items()}
