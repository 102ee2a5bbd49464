"""Whether the server still has what a checkpoint has seen. A data directory that is put back as files has the same
incarnations, and may have other messages behind its end. So a place in a checkpoint has marks (shardd.client.marks),
which are compared when a query begins and whenever the driver's connection was made anew. A place whose marks are of
other messages is one of another history (docs/adr/0140-marks-of-a-history.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from shardd.client.marks import KEPT, Mark, Verdict, added, compared
from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import archive_listing
from shardd.spark.loss import DataLossError, Losses
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.positions import Offsets, Position, TopicName
from shardd.spark.retry import ServerUnreachableError
from shardd.spark.server import Place, Server

if TYPE_CHECKING:
    from shardd.spark.archive_rows import TableRows  # readers of segments do not load Parquet

_log = logging.getLogger(__name__)
NO_HISTORY: Final = -1  # as an incarnation: of a history that the server does not have any more
_NEWEST_ROWS: Final = 1024  # of a table, before its end for a partition
_TRUSTED_MAX: Final = 4  # a batch needs its start and its end, made or compared on the connection
_PLANS_MAX: Final = 5  # of one query whose connections break

T = TypeVar("T")


def verdicts(server: Server, marks: Mapping[Place, Iterable[Mark]]) -> dict[Place, Verdict]:
    """Of each place, by as few questions as there are marks of one (the newest first). `ServerUnreachableError`."""
    found: dict[Place, Verdict] = {}
    open_ = {place: compared(each) for place, each in marks.items()}
    asked = _next(open_, dict.fromkeys(open_), found)
    while asked:
        there = server.marks_at(asked)
        asked = _next(open_, {place: there.get(place) for place in asked}, found)
    return found


def _next(
    open_: dict[Place, Generator[int, Mark | Verdict | None, Verdict]],
    answers: Mapping[Place, Mark | None],
    found: dict[Place, Verdict],
) -> dict[Place, int]:
    """The offsets to look at now; what is decided goes to `found`."""
    asked: dict[Place, int] = {}
    for place, mark in answers.items():
        try:
            asked[place] = open_[place].send(mark)
        except StopIteration as end:
            found[place] = end.value
    return asked


class Rollbacks:
    """Of one streaming query."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._trusted: list[Mapping[TopicName, Mapping[int, Position]]] = []
        self._connection = -1  # of the server, on which these are of its history

    def checked(self, offsets: Offsets, bounds: Mapping[TopicName, TopicBounds]) -> Offsets:
        """The same, with NO_HISTORY for places of messages that the server does not have any more.
        `ServerUnreachableError`."""
        if self._server.connections != self._connection:
            self._trusted, self._connection = [], self._server.connections
        there = {(name, each.id): each for name, topic in bounds.items() for each in topic.partitions}
        marks: dict[Place, Iterable[Mark]] = {}
        others: set[Place] = set()
        for name, held in offsets.places.items():
            for n, place in held.items():
                now = there.get((name, n))
                if now is None or not place.marks or place.incarnation != now.incarnation:
                    continue
                if place.offset > now.end:  # what was read behind its end is not there, whatever is before it
                    others.add((name, n))
                elif not self._trusts(name, n, place):
                    marks[name, n] = reversed(place.marks)
        if not marks and not others:
            return offsets
        found = verdicts(self._server, marks)
        unknown = [place for place, verdict in found.items() if verdict is Verdict.UNKNOWN]
        if unknown:
            (name, n), more = unknown[0], f" and {len(unknown) - 1} more partitions" if len(unknown) > 1 else ""
            _log.warning(
                "partition %d of '%s'%s cannot be compared with the checkpoint: the records that it remembers are"
                " not there any more; the query goes on",
                n,
                name,
                more,
            )
        others |= {place for place, verdict in found.items() if verdict is Verdict.OTHER}
        places = {
            name: {n: replace(each, incarnation=NO_HISTORY) if (name, n) in others else each for n, each in of.items()}
            for name, of in offsets.places.items()
        }
        if not others:
            self._trust(offsets)
        return replace(offsets, places=places)

    def marked(self, end: Offsets, begin: Offsets | None) -> Offsets:
        """The end of a batch with its marks; `begin` as `checked` gave it. Where the connection is another one by now
        there are those of before alone, which are compared next time, and so where the server does not answer any
        more. `ServerUnreachableError` without a begin."""
        asked: dict[Place, int] = {}
        for name, places in end.places.items():
            for n, place in places.items():
                was = None if begin is None else begin.places.get(name, {}).get(n)
                if place.offset and (was is None or was != place):
                    asked[name, n] = place.offset - 1
        try:
            found = self._server.marks_at(asked)
        except ServerUnreachableError as error:
            if begin is None:
                raise
            _log.warning("the batch keeps the marks of the one before: %s", error)
            found = {}
        same = begin is None or self._server.connections == self._connection
        marked = {
            name: {
                n: _marked(place, begin, name, n, found.get((name, n)) if same else None) for n, place in places.items()
            }
            for name, places in end.places.items()
        }
        if same:
            self._connection = self._server.connections
            self._trust(Offsets(marked))
        return replace(end, places=marked)

    def _trust(self, offsets: Offsets) -> None:
        self._trusted = [*self._trusted, offsets.places][-_TRUSTED_MAX:]

    def _trusts(self, name: TopicName, n: int, place: Position) -> bool:
        known = (each.get(name, {}).get(n) for each in self._trusted)
        return any(each == place and each.marks == place.marks for each in known if each is not None)


def on_one_connection(server: Server, plan: Callable[[], T]) -> T:
    """A plan whose answers came on one connection, so of one life of the server. `DataLossError`."""
    for _ in range(_PLANS_MAX):
        before = max(server.connections, 1)
        made = plan()
        if server.connections <= before:
            return made
    raise DataLossError(f"the connection broke in each of {_PLANS_MAX} plans of the query; run it again")


def last_records(server: Server, options: SourceOptions, ends: Mapping[Place, int]) -> dict[Place, Mark]:
    """The record in front of each end, by which the tasks know the history that was planned, where they do.
    `ServerUnreachableError`."""
    if not options.proves_tasks:
        return {}
    found = server.marks_at({place: end - 1 for place, end in ends.items()})
    return {place: mark for place, mark in found.items() if mark.offset == ends[place] - 1}


def with_last_records(
    server: Server, options: SourceOptions, bounds: Mapping[TopicName, TopicBounds], start: Offsets, end: Offsets
) -> Offsets:
    """The end of a batch query with the marks of its tasks."""
    ends: dict[Place, int] = {}
    for name, topic in bounds.items():
        for each in topic.partitions:
            last = min(end.places[name][each.id].offset, each.end)
            if last > max(start.places[name][each.id].offset, each.first):
                ends[name, each.id] = last
    marks = last_records(server, options, ends)
    places = {
        name: {n: replace(each, marks=(marks[name, n],)) if (name, n) in marks else each for n, each in of.items()}
        for name, of in end.places.items()
    }
    return replace(end, places=places)


def _marked(place: Position, begin: Offsets | None, name: TopicName, n: int, mark: Mark | None) -> Position:
    was = None if begin is None else begin.places.get(name, {}).get(n)
    goes_on = was is not None and was.incarnation == place.incarnation and was.offset <= place.offset
    marks = was.marks if was is not None and goes_on else ()
    if mark is not None and mark.offset == place.offset - 1:
        marks = added(marks, mark)
    return replace(place, marks=marks)


def foreign_archives(
    server: Server, root: str, bounds: Mapping[TopicName, TopicBounds], *, passes_damage: bool
) -> frozenset[Place]:
    """Partitions of which an archive has other messages than the server: beyond its end, or by the last records of the
    newest files that end where the server has messages. What does not overlap cannot be compared. `passes_damage`: nor
    a damaged file, of which no later row can be read either. `DamagedArchiveError`, `ServerUnreachableError`,
    `TopicMissingError`."""
    marks: dict[Place, Iterable[Mark]] = {}
    foreign: set[Place] = set()
    for name, topic in bounds.items():
        for each in topic.partitions:
            files = archive_listing.find(root, name, each.id, each.incarnation)
            if any(file.end > each.end for file in files):
                if _ends_before(server, name, each, max(file.end for file in files)):
                    foreign.add((name, each.id))
                continue
            there = sorted((file for file in files if file.end > each.first), key=lambda file: file.end)
            if there:
                paths = [file.path for file in reversed(there[-KEPT:])]
                marks[name, each.id] = _last_records(paths, passes_damage=passes_damage)
    found = verdicts(server, marks)
    return frozenset(foreign | {place for place, verdict in found.items() if verdict is Verdict.OTHER})


def _last_records(paths: Iterable[str], *, passes_damage: bool) -> Iterator[Mark]:
    """One of each file that has one. A file is opened when its record is asked for: nearly always the first one
    decides. What could not be read now and may be later is an error: its rows would be taken unseen."""
    from shardd.spark import archive_files  # readers of segments do not load Parquet

    for path in paths:
        try:
            last = archive_files.last_of(path)
        except FileNotFoundError as error:
            _log.info("an archive file is gone since it was listed: %s", error)
            continue
        except archive_files.DamagedArchiveError as error:
            if not passes_damage or isinstance(error.__cause__, OSError):
                raise
            _log.warning("an archive file is not compared with the server: %s", error)
            continue
        if last is not None:
            yield last


def foreign_table(
    server: Server, bounds: Mapping[TopicName, TopicBounds], begins: Mapping[Place, int], rows: TableRows
) -> frozenset[Place]:
    """Partitions of which a table has other messages than the server. `begins`: how far it has each. What the server
    or the table has not any more cannot be compared. `DamagedArchiveError`, `ServerUnreachableError`."""
    others: set[Place] = set()
    newest: dict[Place, list[tuple[int, set[int]]]] = {}
    for name, topic in bounds.items():
        for each in topic.partitions:
            begin = begins.get((name, each.id), 0)
            if begin > each.end and _ends_before(server, name, each, begin):
                others.add((name, each.id))
            elif each.first < begin <= each.end:
                newest[name, each.id] = _newest(rows, name, each.id, max(each.first, begin - _NEWEST_ROWS), begin)
    for _ in range(KEPT):
        newest = {place: left for place, left in newest.items() if left}
        there = server.marks_at({place: left[-1][0] for place, left in newest.items()}) if newest else {}
        for place, mark in there.items():
            offset, checksums = newest[place].pop()
            if mark.offset == offset:  # it decides
                newest[place].clear()
                others |= set() if mark.checksum in checksums else {place}
        newest = {place: left for place, left in newest.items() if place in there}
    return frozenset(others)


def _newest(rows: TableRows, name: TopicName, partition: int, start: int, end: int) -> list[tuple[int, set[int]]]:
    """The last offsets of a table in front of `end`, each with the checksums that it has there: those of earlier lives
    of the partition are among them."""
    found: dict[int, set[int]] = {}
    for part in rows.between(name, partition, start, end):
        for offset, checksum in zip(part.offsets.tolist(), part.checksums.tolist(), strict=True):
            found.setdefault(offset, set()).add(checksum % (1 << 64))
    return sorted(found.items())[-KEPT:]


def _ends_before(server: Server, name: TopicName, partition: PartitionBounds, end: int) -> bool:
    """Now: another run may have archived what came since the bounds were asked for."""
    [now] = server.bounds({name: (partition.id,)})[name].partitions
    return now.incarnation == partition.incarnation and now.end < end


def with_own_archives(
    server: Server, options: SourceOptions, bounds: Mapping[TopicName, TopicBounds], losses: Losses
) -> SourceOptions:
    """The options without archives of messages that the server does not have. `DataLossError`."""
    if options.archive_path is None or options.read_mode not in (ReadMode.AUTO, ReadMode.COLD):
        return options
    foreign = foreign_archives(server, options.archive_path, bounds, passes_damage=True)
    for name, n in sorted(foreign):
        losses.add(name, n, None, "was put back as files since it was archived: the archive has other messages")
    return replace(options, foreign_archives=foreign)
