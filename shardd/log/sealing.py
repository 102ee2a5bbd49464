"""Sealing: a segment behind which another one has begun is verified once, whole, and its manifest gets length and
digest. From then on a recovery trusts it. Runs in a helper thread, beside a server that reads the segment.

Everything goes through the descriptor of the directory: a partition that is deleted or purged meanwhile takes its
directory along into the trash, and what is made at the old path is not touched.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from shardd.engine import ExpiryClock, _native
from shardd.log import layout
from shardd.log.imported import end_of_import
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import (
    Checkpoint,
    DamagedManifestError,
    Manifest,
    Sealed,
    read_manifest,
    write_manifest,
)
from shardd.log.segment_layout import COMPRESSED
from shardd.log.segment_reader import layout_of, log_path, opened, opened_index, opened_log, stored_file
from shardd.log.single_pass import LogPass
from shardd.runtime.throttle import Throttle


def counted_at(timestamp: int, clock: ExpiryClock) -> int:
    """For Manifest.counted_us of a segment that is sealed now, or is seen now with such times for the first time."""
    is_ahead = timestamp - max(clock.now_us, clock.stamp_us) >= _native.CLOCK_STEP_US
    return clock.now_us if is_ahead else 0


def seal_segment(
    directory: Path, start_offset: int, incarnation: int, throttle: Throttle, clock: ExpiryClock | None = None
) -> tuple[int, str | None]:
    """(bytes of the log, None), or a sentence when it cannot be sealed because it is not whole. (0, None): the segment
    is gone, sealed already, or holds ranges that were isolated. Log and index are on the device before the manifest
    says so. `clock`: where times are ahead of it, the time of sealing is written down, also of a segment that is sealed
    already; None: no clock is looked at. OSError, and SyncFailedError when the log or the directory could not be
    synced."""
    with ExitStack() as stack:
        try:
            here = Path(f"/proc/self/fd/{stack.enter_context(opened(directory, os.O_RDONLY | os.O_DIRECTORY))}")
            if read_incarnation(here) != incarnation:
                return 0, None
            log = stack.enter_context(opened_log(here, start_offset))
            index = stack.enter_context(opened_index(here, start_offset))
        except FileNotFoundError:
            return 0, None
        try:
            manifest = read_manifest(here, start_offset)
        except DamagedManifestError:
            manifest = None
        if manifest is None or manifest.incarnation != incarnation:
            manifest = Manifest(incarnation, start_offset, log_start_offset=start_offset)
        if manifest.sealed is not None and clock is not None and not manifest.counted_us:
            counted_us = counted_at(manifest.sealed.last_timestamp, clock)
            if counted_us:
                _replace_manifest(here, replace(manifest, counted_us=counted_us))
        if manifest.sealed is not None or manifest.isolated:
            return 0, None
        try:
            os.fdatasync(log)
        except OSError as error:
            raise layout.SyncFailedError(*error.args) from error
        os.fdatasync(index)
        imported_end, born_at = end_of_import(here), manifest.born_at
        found = LogPass(log, start_offset, imported_end, throttle, minimum_timestamp=born_at).whole()
        if found.damage or not found.count:
            path = layout.segment_log(directory, start_offset)
            return found.bytes, f"{path}: {found.damage or 'without a message'}, the segment is not sealed"
        known = found.bytes, found.count, found.first_timestamp, found.last_timestamp
        sealed = Sealed(*known, digest=found.digest.digest())
        counted_us = 0 if clock is None else counted_at(found.last_timestamp, clock)
        fresh = replace(manifest, checkpoint=Checkpoint(*known), sealed=sealed, counted_us=counted_us)
        if layout_of(here, start_offset) is COMPRESSED:  # its manifest was lost
            fresh = replace(fresh, end_offset=start_offset + found.count, stored=stored_file(here, start_offset))
        _replace_manifest(here, fresh)
        return found.bytes, None


def _replace_manifest(directory: Path, manifest: Manifest) -> None:
    """Leaves no trace when the segment was deleted meanwhile."""
    write_manifest(directory, manifest)
    if not log_path(directory, manifest.start_offset).exists():
        with suppress(FileNotFoundError):
            layout.segment_manifest(directory, manifest.start_offset).unlink()
