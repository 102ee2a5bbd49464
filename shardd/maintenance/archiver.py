"""Job `archive` of shard 0: brings what has left its log into the spool, removes what is acknowledged, and keeps the
spool within its bound as far as topics allow (docs/adr/0047-archive-before-deletion.md)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardd.config.schema import ArchiveSettings
from shardd.log import layout, spool
from shardd.log.spool import Segment, SpoolManifest, UnfitError
from shardd.log.trash import move_to_trash
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.topic_setting_table import ARCHIVE
from shardd.runtime.throttle import Throttle

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
TELL_AGAIN_S: Final = 600.0  # the same sentence in the log
_THREAD: Final = JobThread("archive", nice=19)


class Archiver:
    """Lives on the loop thread; the work is done in its helper thread. A run takes minutes: `state` gives the metadata
    of the moment whenever they decide about something."""

    def __init__(
        self,
        data: Path,
        state: Callable[[], State],
        settings: ArchiveSettings,
        jobs: JobScheduler,
        trashed: Callable[[], None],
    ) -> None:
        self._data, self._state, self._settings, self._trashed = data, state, settings, trashed
        self._counters = {"spooled": 0, "archived": 0, "acknowledged": 0, "dropped": 0, "dropped_bytes": 0, "errors": 0}
        self._gauges = {"incoming": 0, "spool_entries": 0, "spool_bytes": 0, "oldest_age_s": 0, "above_max": 0}
        self._told: dict[str, float] = {}
        self._settling = spool.Settling()
        jobs.add(
            Job(
                "archive", self._work, INTERVAL_S, thread=_THREAD, per_second=settings.rate_bytes, unit="bytes",
                left=lambda: self._gauges["incoming"] + self._gauges["spool_entries"],
            )
        )  # fmt: skip

    def counters(self) -> dict[str, int]:
        """Segments that came into the spool, were copied to the directory of the settings, were acknowledged and
        removed; those that went without, with their bytes; steps that have failed."""
        return dict(self._counters)

    def gauges(self) -> dict[str, int]:
        """Segments on their way into the spool and in it, bytes there, how long the oldest one waits; 1: that is more
        than the settings say, and nothing of it may go."""
        return dict(self._gauges)

    async def _work(self, turn: Turn) -> None:
        before = self._counters["acknowledged"] + self._counters["dropped"]
        await turn.beside(self._run, turn.throttle)
        if self._counters["acknowledged"] + self._counters["dropped"] > before:
            self._trashed()

    def _run(self, throttle: Throttle) -> None:
        failed: list[Segment] = []
        for segment in self._settling.incoming(self._data):
            before = failed and (failed[-1].ids, failed[-1].incarnation) == (segment.ids, segment.incarnation)
            # in order: how far a table is says that everything before it was there
            if before or not self._try(str(segment), self._take_in, segment, throttle):
                failed.append(segment)
        waiting: list[tuple[float, Path, SpoolManifest]] = []
        for entry in spool.entries(spool.spool_directory(self._data)):
            self._try(str(entry), self._look_at, entry, waiting, throttle)
        total = sum(manifest.file_bytes for _, _, manifest in waiting)
        for _, entry, manifest in sorted(waiting, key=lambda each: each[0]):
            if total > self._settings.spool_max_bytes and not self._requires(manifest):
                total -= manifest.file_bytes
                waiting = [each for each in waiting if each[1] != entry]
                self._try(str(entry), self._drop, entry, manifest)
        oldest = min((since for since, _, _ in waiting), default=time.time())
        above = total > self._settings.spool_max_bytes
        self._gauges = {
            "incoming": len(failed),
            "spool_entries": len(waiting),
            "spool_bytes": total,
            "oldest_age_s": max(0, round(time.time() - oldest)),
            "above_max": int(above),
        }
        if above:
            self._tell(
                f"the spool of the archive has {total} bytes, more than system.archive.spool_max, and waits for its"
                " ACKs: its segments are not deleted (`shardd pipeline archive --spool`)"
            )

    def _try(self, what: str, step: Callable[..., None], *arguments: object) -> bool:
        try:
            step(*arguments)
        except (OSError, ValueError) as error:  # of this one; the others are looked at
            self._counters["errors"] += 1
            self._tell(f"{what} cannot be archived: {error}")
            return False
        return True

    def _tell(self, sentence: str) -> None:
        """Each sentence once, and again after a while."""
        now_s = time.monotonic()
        self._told = {key: at for key, at in self._told.items() if now_s - at < TELL_AGAIN_S}
        if self._told.setdefault(sentence, now_s) == now_s:
            _log.warning("%s", sentence)

    def _topic(self, segment: Segment) -> tuple[Stream, Topic] | None:
        """That of a segment, as it is now; None when it was deleted or purged."""
        ids = segment.ids
        stream = self._state().streams.get(ids[0])
        topic = None if stream is None else stream.topics.get(ids[1])
        if stream is None or topic is None or ids[2] >= len(topic.partitions):
            return None
        return (stream, topic) if topic.partitions[ids[2]].incarnation == segment.incarnation else None

    def _requires(self, manifest: SpoolManifest) -> bool:
        """Whether the entry may not go without an archive: its topic says so now, or said it when it was deleted."""
        ids = manifest.stream.id, manifest.topic.id, manifest.partition
        found = self._topic(Segment(ids, manifest.incarnation, manifest.start))
        return manifest.archive == "required" if found is None else _is_required(found[1])

    def _take_in(self, segment: Segment, throttle: Throttle) -> None:
        found = self._topic(segment)
        if found is None:  # deleted or purged, and so is this
            spool.forget(self._data, segment)
            return
        stream, topic = found  # "none" may have been said after it had left its log
        archive = "required" if _is_required(topic) else "best_effort"
        try:
            made = spool.make_entry(self._data, segment, (stream.name, topic.name), archive, throttle)
        except UnfitError:
            found = self._topic(segment)  # reading it has taken its time
            if found is not None and _is_required(found[1]):
                raise
            spool.forget(self._data, segment)
            self._counters["dropped"] += 1
            _log.warning("%s is damaged and deleted without an archive", segment)
            return
        self._counters["spooled"] += made is not None

    def _look_at(self, entry: Path, waiting: list[tuple[float, Path, SpoolManifest]], throttle: Throttle) -> None:
        """Removes what is acknowledged; the rest waits."""
        manifest = spool.read_entry(entry)
        waiting.append(((entry / spool.MANIFEST).stat().st_mtime, entry, manifest))
        if spool.read_acknowledgement(entry, manifest) is None and self._settings.directory:
            from shardd.log import archive_directory  # few servers need it

            archive_directory.archive(entry, manifest, Path(self._settings.directory), throttle)
            self._counters["archived"] += 1
        if spool.read_acknowledgement(entry, manifest) is not None:
            waiting.pop()
            self._remove(entry)
            self._counters["acknowledged"] += 1

    def _drop(self, entry: Path, manifest: SpoolManifest) -> None:
        self._remove(entry)
        self._counters["dropped"] += 1
        self._counters["dropped_bytes"] += manifest.file_bytes
        _log.warning(
            "%d messages of %s/%s, partition %d, from offset %d on are deleted without an archive: the spool is full",
            manifest.records, manifest.stream.name, manifest.topic.name, manifest.partition, manifest.start,
        )  # fmt: skip

    def _remove(self, entry: Path) -> None:
        move_to_trash(entry, layout.trash_directory(self._data), durable=False)
        for parent in list(entry.parents)[:3]:  # partition, topic, stream
            try:
                parent.rmdir()
            except OSError:
                return


def _is_required(topic: Topic) -> bool:
    return topic.settings.get(ARCHIVE.key) == "required"
