"""What `shardd doctor state` says about the files of the metadata. Reads only, also beside a running server."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from shardd.metadata.apply import ApplyError, replay
from shardd.metadata.errors import LogError
from shardd.metadata.load import records_behind
from shardd.metadata.log_file import FILE_NAME, LogContent, check_tail, read_log
from shardd.metadata.reserve import RESERVE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME, Snapshot, read_snapshot
from shardd.metadata.state import State

_ATTEMPTS: Final = 3  # a running server may cut the log between the reads
_PAUSE_S: Final = 0.05
T = TypeVar("T")


class Inspection(msgspec.Struct):
    """One sentence each. `damage`: what keeps the server from starting; `findings`: everything else."""

    findings: list[str] = msgspec.field(default_factory=list)
    damage: list[str] = msgspec.field(default_factory=list)


def diagnose_state(directory: Path) -> Inspection:
    """Verifies the checksums of snapshot and log, that they belong together, and that the records can be applied."""
    for _ in range(_ATTEMPTS):
        inspection = _inspect(directory)
        if not inspection.damage:
            break
        time.sleep(_PAUSE_S)
    return inspection


def _inspect(directory: Path) -> Inspection:
    inspection = Inspection()
    path = directory / FILE_NAME
    snapshot = content = None
    try:
        snapshot = read_snapshot(directory / SNAPSHOT_NAME)
        inspection.findings.append(_about_snapshot(snapshot))
    except LogError as error:
        inspection.damage.append(str(error))
    try:
        content = read_log(path)
        check_tail(path, content)
        inspection.findings += _about_log(content, path.exists())
    except LogError as error:
        inspection.damage.append(str(error))
    if snapshot is not None and content is not None and not inspection.damage:
        try:
            state = replay(records_behind(path, snapshot, content), snapshot.state)
            inspection.findings += _about_state(state)
        except (LogError, ApplyError) as error:
            inspection.damage.append(str(error))
    inspection.findings += _about_files(directory)
    return inspection


def _about_snapshot(snapshot: Snapshot) -> str:
    if not snapshot.index:
        return f"{SNAPSHOT_NAME}: none"
    submissions = len(snapshot.submissions)
    return (
        f"{SNAPSHOT_NAME}: covers records up to {snapshot.index}, {snapshot.size_bytes} bytes, "
        f"{submissions} submissions, checksum right"
    )


def _about_log(content: LogContent, exists: bool) -> Iterable[str]:
    if not exists:
        yield f"{FILE_NAME}: none"
        return
    which = f"records {content.base + 1} to {content.index}" if content.records else f"no record behind {content.base}"
    yield f"{FILE_NAME}: {which} ({len(content.records)}), {content.ends[-1]} bytes, chain of digests right"
    if content.tail:
        yield (
            f"{FILE_NAME}: {len(content.tail)} bytes of an unfinished record {content.index + 1}: being written, or "
            "left by a crash; the next start cuts them off"
        )


def _about_state(state: State) -> Iterable[str]:
    topics = [topic for stream in state.streams.values() for topic in stream.topics.values()]
    partitions = sum(len(topic.partitions) for topic in topics)
    groups = sum(len(topic.groups) for topic in topics)
    yield (
        f"state at record {state.index}: streams {len(state.streams)}, topics {len(topics)}, partitions {partitions}, "
        f"consumer groups {groups}, users {len(state.users)}, tokens {len(state.token_owners)}"
    )


def _about_files(directory: Path) -> Iterable[str]:
    if not (directory / RESERVE_NAME).exists():
        yield f"{RESERVE_NAME}: none; the disk is or was full, or no server ran here yet"
    torn = sorted(path.name for path in directory.glob(f"{FILE_NAME}.torn*"))
    if torn:
        yield f"bytes of unfinished records that were cut off: {', '.join(torn)}"
