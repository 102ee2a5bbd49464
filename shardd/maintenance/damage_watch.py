"""What a worker does about damage: surveys when a read meets it, the scrubber, and their threads and figures."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from shardd.config.schema import ScrubberSettings
from shardd.engine import Engine
from shardd.maintenance.damage_surveys import DamageSurveys, Owned
from shardd.maintenance.scrubber import Scrubber
from shardd.runtime.helper_threads import HelperThreads
from shardd.runtime.metrics import MetricRegistry

_THREADS: Final = 1  # of each kind
_SURVEY_NICE: Final = 5  # polls wait for it, all other work goes on
_SCRUB_NICE: Final = 19


class DamageWatch:
    """Made on the loop thread, `start`ed when the partitions are open."""

    def __init__(self, engine: Engine, data: Path, owned: Owned, settings: ScrubberSettings) -> None:
        self._settings = settings
        self._survey_threads = HelperThreads(_THREADS, "survey", nice=_SURVEY_NICE)
        self._scrub_threads = HelperThreads(_THREADS, "scrub", nice=_SCRUB_NICE)
        self._surveys = DamageSurveys(engine, data, owned, self._survey_threads)
        self._scrubber = Scrubber(engine, data, owned, self._surveys, self._scrub_threads, settings)

    def start(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        spawn(self._surveys.run())
        if self._settings.enabled:
            spawn(self._scrubber.run())

    def doubt(self, namespace: int, segment: int) -> None:
        """EVENT_DOUBT: log and index of this segment contradict each other."""
        self._surveys.ask(namespace, segment)

    def add_to(self, metrics: MetricRegistry) -> None:
        metrics.add("damage", self._surveys.gauges, self._surveys.counters)
        metrics.add("scrubber", self._scrubber.gauges, self._scrubber.counters)

    async def close(self) -> None:
        """After the tasks were cancelled."""
        await self._survey_threads.close()
        await self._scrub_threads.close()
