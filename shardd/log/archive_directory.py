"""A plain directory as an archive, for those without Spark: entries of the spool are copied there as they are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from shardd.log import layout, spool
from shardd.log.spool import Acknowledgement, ArchivedFile, SpoolManifest, UnfitError
from shardd.runtime.throttle import Throttle

_STEP_BYTES: Final = 1 << 20
_TEMPORARY: Final = ".copying"


def archive(entry: Path, manifest: SpoolManifest, target: Path, throttle: Throttle) -> None:
    """Copies an entry and acknowledges it: a new directory, fsync, rename, fsync; what is acknowledged was read back.
    One that is there already, whole, is not copied again. OSError, UnfitError, StoppedError."""
    place = target / spool.relative_path(manifest)
    if not place.exists():
        fresh = place.with_name(place.name + _TEMPORARY)
        if fresh.exists():  # of an attempt that was interrupted
            shutil.rmtree(fresh)
        fresh.mkdir(parents=True)
        for source in sorted(entry.iterdir()):
            if source.name != spool.ACK and source.is_file():
                _copy(source, fresh / source.name, throttle)
        layout.sync_directory(fresh)
        fresh.rename(place)
        for parent in place.parents:
            layout.sync_directory(parent)
            if parent == target:
                break
    there = spool.read_entry(place)
    if (there.digest, there.records) != (manifest.digest, manifest.records):
        raise UnfitError(f"{place} is another segment")
    spool.verify(place, there)
    throttle.spend(there.file_bytes)
    file = ArchivedFile(str(place / there.file), there.records, there.file_bytes, there.digest)
    spool.acknowledge(entry, Acknowledgement(there.digest, there.records, f"directory:{target}", (file,)))


def _copy(source: Path, target: Path, throttle: Throttle) -> None:
    with source.open("rb", buffering=0) as read, target.open("xb", buffering=0) as written:
        while part := read.read(_STEP_BYTES):
            throttle.spend(len(part))
            view = memoryview(part)
            while view:
                view = view[written.write(view) :]
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read back from the device
