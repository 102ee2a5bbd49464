"""Puts one fault into the program that starts (tests/vopr/planted.py). Imported by Python itself, before anything else:
each module is changed when it is imported."""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

SETTINGS_OLD_S: Final = 2.0
UNTIL_COMPRESSED_S: Final = 15.0  # in all: the compressor begins 10 s after a start


def _stale_deletions(module: Any) -> None:
    """Behind each await it goes on with whatever is at the place."""
    kept = module.PartitionCalls._delete_segments

    async def delete(self: Any, place: tuple[int, int], count: int) -> int:
        for _ in range(module.DELETE_ATTEMPTS_MAX):
            there = module.partition_at(self._metadata.state, place[0])
            place = place[0], there.incarnation
            try:
                done = self._engine.partition_delete_segments(
                    *place, min(count, module.DELETE_STEP), self._destination(place)
                )
            except KeyError:  # between two incarnations
                await asyncio.sleep(module.DELETE_RETRY_S)
                continue
            count -= done.deleted
            if not done.busy:
                return int(done.status)
            await asyncio.sleep(module.DELETE_RETRY_S)
        return int(await kept(self, place, count))

    module.PartitionCalls._delete_segments = delete


def _stale_settings(module: Any) -> None:
    kept = module.Retention.__init__

    def begin(self: Any, engine: Any, place: Any, owned: Any, state: Callable[[], Any], *rest: Any) -> None:
        seen: list[Any] = []

        def old() -> Any:
            now_s = time.monotonic()
            if not seen or now_s - seen[0][0] > SETTINGS_OLD_S:
                seen[:] = [(now_s, state())]
            return seen[0][1]

        kept(self, engine, place, owned, old, *rest)

    module.Retention.__init__ = begin


def _linked_by_name(module: Any) -> None:
    """Asks again which file the segment has, when the compressor may have been there, and proves nothing."""
    until_s = time.monotonic() + UNTIL_COMPRESSED_S

    def link(self: Any, source: Any, file: Any, digest: Any, sparse_end: int) -> Any:
        name = f"{self.start:020}"
        while time.monotonic() < until_s and not (self.directory / f"{name}.blocks").exists():
            time.sleep(0.05)
        there = next(self.directory.glob(f"{name}.blocks"), None) or self.directory / f"{name}.log"
        os.link(there, self._kept, follow_symlinks=False)
        whole = module.LogPass(source.descriptor, self.start, self.imported_end, self.throttle, sparse_end=sparse_end)
        return self._entry(whole.whole(self.following), module.LINKED, file, sparse_end)

    module.Segment._link = link
    module.Segment._prove = lambda self, source, entry: None


CHANGES: Final = {
    "deletions by place": ("shardd.service.partition_calls", _stale_deletions),
    "settings of before": ("shardd.maintenance.retention", _stale_settings),
    "links by name": ("shardd.backup.segment", _linked_by_name),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Changes the module when it has been run."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name, self.change = name, change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            self.change(module)

        loader.exec_module = run_and_change
        return spec


if (planted := os.environ.get("VOPR_PLANTED", "")) in CHANGES:
    sys.meta_path.insert(0, _Finder(*CHANGES[planted]))
