"""Checks of `shardd doctor` of the retention of topics. They only read the data directory."""

from __future__ import annotations

import time
from typing import Final

from shardd.cli.doctor.report import Finding, ok, warning
from shardd.config.schema import Settings
from shardd.config.units import format_size
from shardd.log import layout, spool
from shardd.maintenance import clock_memory
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.maintenance.retention_preview import newest_time_us, preview, preview_held
from shardd.metadata import FILE_NAME
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state
from shardd.metadata.state import State
from shardd.runtime.throttle import Throttle

_CHECK: Final = "retention"
_TOPICS_MAX: Final = 8
_OLD_S: Final = 24 * 3600.0
_AHEAD_US: Final = 60_000_000
_STUCK_S: Final = 10.0  # an entry is made in less, or its turn comes again every second


def retention_findings(settings: Settings) -> list[Finding]:
    """Nothing where there is no data yet, or where it cannot be read: `doctor state` says why."""
    state = _state(settings)
    return (
        []
        if state is None
        else [_kept(settings, state), *_held(settings, state), *_ahead(settings, state), *_spool(settings)]
    )


def _state(settings: Settings) -> State | None:
    path = settings.system.data_directory / FILE_NAME
    try:
        return load_state(path) if path.exists() else None
    except (LogError, ApplyError, OSError):
        return None


def _kept(settings: Settings, state: State) -> Finding:
    if not settings.data_maintenance.cleaner_enabled:
        return ok(_CHECK, "switched off by data_maintenance.messages.cleaner_enabled", "no topic loses messages")
    now_us = time.time_ns() // 1000
    found = preview(settings.system.data_directory, state, RetentionLimits(settings), now_us, Throttle())
    if not found:
        return ok(_CHECK, "every topic with an expiry or a size has a word about it", "nothing waits to be removed")
    most = sorted(found, key=lambda each: -each.size_bytes)
    names = ", ".join(map(str, most[:_TOPICS_MAX])) + (" ..." if len(most) > _TOPICS_MAX else "")
    size = format_size(sum(each.size_bytes for each in found))
    text = f"{len(found)} topics keep everything, whatever their expiry and size: {names}"
    return warning(_CHECK, text, f"`shardd retention enable` would remove at least {size}, and what comes to that age")


def _held(settings: Settings, state: State) -> list[Finding]:
    """Topics from before, in which stored offsets hold messages beyond sizes and counts."""
    now_us = time.time_ns() // 1000
    found = preview_held(settings.system.data_directory, state, RetentionLimits(settings), now_us, Throttle())
    if not found:
        return []
    most = sorted(found, key=lambda each: -each.size_bytes)
    names = ", ".join(map(str, most[:_TOPICS_MAX])) + (" ..." if len(most) > _TOPICS_MAX else "")
    size = format_size(sum(each.size_bytes for each in found))
    text = f"stored offsets may hold messages of {len(found)} topics beyond their size or count: {names}"
    return [warning(_CHECK, text, f'`shardd topic set STREAM TOPIC "size_held_max=0 s"` would remove at most {size}')]


def _ahead(settings: Settings, state: State) -> list[Finding]:
    """Partitions whose segments carry times that are not yet, by the clock that the server believes."""
    data, found = settings.system.data_directory, list[tuple[int, str]]()
    now_us = clock_memory.recalled(data).now_us() or time.time_ns() // 1000
    for stream in state.streams.values():
        for topic in stream.topics.values():
            for partition in topic.partitions:
                directory = layout.partition_directory(data, stream.id, topic.id, partition.id)
                ahead_us = newest_time_us(directory, partition.incarnation) - now_us
                if ahead_us > _AHEAD_US:
                    found.append((ahead_us, f"{stream.name}/{topic.name}/{partition.id}"))
    if not found:
        return []
    found.sort(reverse=True)
    names = ", ".join(name for _, name in found[:_TOPICS_MAX]) + (" ..." if len(found) > _TOPICS_MAX else "")
    text = f"{len(found)} partitions carry times ahead of the clock, up to {found[0][0] / 3.6e9:.1f} h: {names}"
    advice = "later messages get the same times and age from when their segment was sealed; a purge ends it"
    return [warning(_CHECK, text, advice)]


def _spool(settings: Settings) -> list[Finding]:
    """What waits for its archive; nothing where no topic asks for one."""
    data = settings.system.data_directory
    waiting, bytes_waiting, oldest_s = 0, 0, 0.0
    try:
        incoming = spool.incoming(data)
        held = spool.held(data)
        held_since_s = time.time() if held is None else min(path.stat().st_ctime for path in held.iterdir())
        for entry in spool.entries(spool.spool_directory(data)):
            manifest = entry / spool.MANIFEST
            waiting += 1
            bytes_waiting += sum(path.stat().st_size for path in entry.iterdir())
            oldest_s = max(oldest_s, time.time() - manifest.stat().st_mtime)
    except (OSError, ValueError):  # a server is at work
        return []
    if not waiting and not incoming:
        return []
    size, stuck = format_size(bytes_waiting), len(incoming)
    text = f"{waiting} segments with {size} wait for their archive, {stuck} for their place there"
    if held is not None and time.time() - held_since_s > _STUCK_S:
        advice = "its log says what is damaged; to give the segment up move this directory away"
        return [warning("archive", f"{text}; {held} holds them up", advice)]
    if bytes_waiting > settings.system.archive.spool_max_bytes or oldest_s > _OLD_S:
        advice = "run `shardd pipeline archive --spool`, or set system.archive.directory"
        return [warning("archive", text, f"the oldest for {oldest_s / 3600:.1f} h, none of them is deleted: {advice}")]
    return [ok("archive", text, "they are deleted when they are acknowledged")]
