"""Segments of the model's server that lose messages: what an import of thinned logs leaves, and damaged messages that
an operator isolates."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import xxhash

from shardd.log import layout
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.manifest import Manifest, read_manifest, write_manifest
from tests.spark.model.world import AHEAD_S, TOPICS, BrokenPromiseError, World
from tests.unit import log_files

Place = tuple[str, int]


@dataclass
class Sealed:
    """A sealed segment of which nothing is gone yet."""

    place: Place
    directory: Path
    start: int
    end: int
    manifest: Manifest


def thin(world: World, chance: random.Random) -> int:
    """Two of three messages of a sealed segment are not there any more, and its manifest explains it. How many."""
    segment = _sealed(world, chance)
    if segment is None:
        return 0
    start, end, incarnation = segment.start, segment.end, segment.manifest.incarnation
    kept = list(range(start + 1, end, 3))
    with world.stopped():
        few = log_files.thinned(_stored(segment), kept)
        _unlink(segment)
        log_files.write(segment.directory, few, incarnation=incarnation)
        first = segment.manifest.log_start_offset
        write_manifest(segment.directory, log_files.manifest_of(few, end, incarnation=incarnation, first=first))
    gone = set(range(start, end)) - set(kept)
    world.history(*segment.place).sparse |= gone
    return len(gone)


def give_up(world: World, chance: random.Random) -> int:
    """A message of a sealed segment is damaged and isolated. How many offsets are given up."""
    segment = _sealed(world, chance)
    if segment is None:
        return 0
    stored = _stored(segment)
    log = bytearray(stored.log)
    log[stored.borders[chance.randrange(stored.count)] + 66] ^= 1  # in its payload
    with world.stopped():
        _unlink(segment)
        log_files.write(segment.directory, replace(stored, log=bytes(log)), incarnation=segment.manifest.incarnation)
        damaged = [each for view in diagnose_partition(segment.directory) for each in view.open_damage()]
        isolate(segment.directory, damaged)
    gone = {offset for each in damaged for offset in range(each.start, each.end)}
    if not gone:
        raise BrokenPromiseError(f"damage in the segment {segment.start} of {segment.place} is not found")
    history = world.history(*segment.place)
    history.isolated |= gone
    history.changes += 1
    return len(gone)


def ahead(world: World, chance: random.Random) -> bool:
    """A topic is made anew, and the first messages of a partition have the times of a clock that was an hour ahead, as
    a machine with a wrong clock leaves them: what comes behind them is not older."""
    place = chance.choice(TOPICS), 0
    world.recreate(place[0])
    world.send(*place, 20)
    history, directory, start = world.history(*place), _directory(world, place), 0
    with world.stopped():
        paths = layout.segment_log(directory, start), layout.segment_index(directory, start)
        log, index = (bytearray(path.read_bytes()) for path in paths)
        begin = 0
        for at in range(0, len(index), 16):
            end = int.from_bytes(index[at + 4 : at + 8], "little")
            later = int.from_bytes(log[begin + 32 : begin + 40], "little") + AHEAD_S * 1_000_000
            log[begin + 32 : begin + 40] = index[at + 8 : at + 16] = later.to_bytes(8, "little")
            log[begin : begin + 8] = xxhash.xxh3_64_intdigest(log[begin + 8 : end]).to_bytes(8, "little")
            begin = end
        for path, content in zip(paths, (log, index), strict=True):
            path.unlink()
            path.write_bytes(content)
        layout.segment_manifest(directory, start).unlink(missing_ok=True)
    history.ahead = start
    return True


def _directory(world: World, place: Place) -> Path:
    bounds = world.topic_bounds(place[0])
    return layout.partition_directory(world.server.data_dir, bounds.stream_id, bounds.topic_id, place[1])


def _unlink(segment: Sealed) -> None:
    """Backups have links to the same files."""
    for of in (layout.segment_log, layout.segment_index):
        of(segment.directory, segment.start).unlink()


def _stored(segment: Sealed) -> log_files.Stored:
    index = layout.segment_index(segment.directory, segment.start).read_bytes()
    ends = [int.from_bytes(index[at + 4 : at + 8], "little") for at in range(0, len(index), 16)]
    log = layout.segment_log(segment.directory, segment.start).read_bytes()
    return log_files.Stored(segment.start, log, index, [0, *ends])


def _sealed(world: World, chance: random.Random) -> Sealed | None:
    found = []
    for place in sorted(world.now):
        directory, history = _directory(world, place), world.history(*place)
        gone = history.sparse | history.isolated
        for start, end in pairwise(sorted(int(path.stem) for path in directory.glob("*.log"))):
            if start < history.floor or end - start < 4 or gone.intersection(range(start, end)):
                continue
            manifest = read_manifest(directory, start)
            if manifest is not None and manifest.sealed is not None:
                found.append(Sealed(place, directory, start, end, manifest))
    return chance.choice(found) if found else None
