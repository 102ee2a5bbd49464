"""Start-up sweep over `streams/`: what the metadata does not know is reported; only what carries the marker of an
incarnation that is over (a stream deleted just before a crash) goes to the trash, and what was made just before a crash
and holds nothing is removed. Nothing else is ever touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.trash import move_to_trash

PartitionKey = tuple[int, int, int]  # stream, topic, partition


def sweep_streams(
    data: Path,
    partitions: Mapping[PartitionKey, int],
    metadata_index: int,
    mine: Callable[[PartitionKey], bool] = lambda _: True,
    *,
    report_foreign: bool = True,
) -> list[str]:
    """Compares the directories with the metadata: `partitions` gives the incarnation of every existing partition,
    `metadata_index` the last applied record. Returns one sentence for each thing found. Call it once at the start of a
    shard, with metadata that is complete. OSError when `streams/` cannot be read.

    `mine` tells whether a place is this shard's to judge; `report_foreign`: what is no place at all is reported, too.
    A marker above `metadata_index` proves that the metadata is older than the log (a restored copy): reported only.
    """
    found = _sweep(data, partitions, metadata_index, mine)
    return [sentence for foreign, sentence in found if report_foreign or not foreign]


def _sweep(
    data: Path, partitions: Mapping[PartitionKey, int], metadata_index: int, mine: Callable[[PartitionKey], bool]
) -> Iterator[tuple[bool, str]]:
    """(whether it is no place of this server, sentence)."""
    alive = set(partitions.values())
    streams = {key[0] for key in partitions}
    topics = {key[:2] for key in partitions}
    for stream, stream_path in _children(data / layout.STREAMS):
        if stream is None:
            yield True, f"{stream_path}: not a stream of this server, left alone"
            continue
        for topic, topic_path in _children(stream_path / layout.TOPICS):
            if topic is None:
                yield True, f"{topic_path}: not a topic of this server, left alone"
                continue
            for partition, path in _children(topic_path / layout.PARTITIONS):
                if partition is None:
                    yield True, f"{path}: not a partition of this server, left alone"
                elif (place := (stream, topic, partition)) not in partitions and mine(place):
                    yield False, _judge(data, path, alive, metadata_index)
            if (stream, topic) not in topics:
                _remove_if_empty(topic_path / layout.PARTITIONS, topic_path)
        if stream not in streams:
            _remove_if_empty(stream_path / layout.TOPICS, stream_path)


def _children(directory: Path) -> list[tuple[int | None, Path]]:
    """Entries by name with the id they are named after; None for files and other names."""
    try:
        with os.scandir(directory) as entries:  # tells what a directory is without a call for each
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(layout.parse_id(name) if is_directory else None, directory / name) for name, is_directory in found]


def _judge(data: Path, path: Path, alive: set[int], metadata_index: int) -> str:
    try:
        incarnation = read_incarnation(path)
    except (OSError, ValueError) as error:  # of a later version, or no file at all
        return f"{error}, left alone"
    if incarnation is None and _remove_unborn(path):
        return f"{path}: partition of a deleted topic, removed: it was made just before a crash and holds nothing"
    if incarnation is None:
        return f"{path}: unknown to the metadata and without a marker, left alone"
    if incarnation in alive:
        return f"{path}: carries the marker of an existing partition at a wrong place, left alone"
    if incarnation > metadata_index:
        return f"{path}: made by metadata record {incarnation}, but the metadata ends at {metadata_index}, left alone"
    target = move_to_trash(path, layout.trash_directory(data))
    return f"{path}: partition of a deleted topic, moved to {target}"


def _remove_unborn(path: Path) -> bool:
    """Removes a directory whose maker died before it had a marker (native/src/log/partition/roll.c); False when it
    holds anything else."""
    unfinished = layout.INCARNATION + layout.TEMPORARY_SUFFIX
    if any(each.name != unfinished or not each.is_file() for each in path.iterdir()):
        return False
    (path / unfinished).unlink(missing_ok=True)
    path.rmdir()
    return True


def _remove_if_empty(*directories: Path) -> None:
    """Removes skeleton directories that hold nothing any more; one that is not empty stays."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return
