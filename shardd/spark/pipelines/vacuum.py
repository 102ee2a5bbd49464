"""vacuum: removes files that nothing refers to: the leftovers of tasks and drivers that were killed or lost against
their repetition. Only files that carry a name the sinks and the archive give, never a link, and old enough that no
writer can still be at them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shardd.spark import archive_files
from shardd.spark.archive_files import DamagedArchiveError, Footer
from shardd.spark.archive_listing import parse_file_name
from shardd.spark.loss import HistoryGoneError
from shardd.spark.pipelines import archive_publish
from shardd.spark.pipelines.common import PipelineError
from shardd.spark.sinks.parquet import ParquetDirectory

_HEX: Final = "[0-9a-f]{32}"
_WRITTEN: Final = re.compile(rf"(part-(\d+|x)-\d{{5}}|archive-\d+-\d{{20}}-\d{{20}})-{_HEX}\.parquet", re.ASCII)
_ATTEMPT: Final = re.compile(rf"batch=\d+(\.{_HEX})?", re.ASCII)  # without the digits: of earlier versions
_CLAIM: Final = re.compile(rf"{ParquetDirectory.APPLICATION}\.{_HEX}", re.ASCII)


def vacuum(kind: str, place: str, *, older_than_s: float, dry_run: bool, properties: dict[str, str]) -> dict[str, Any]:
    """Local paths only. Returns what was (or would be) removed. `PipelineError`."""
    if not math.isfinite(older_than_s) or older_than_s < 0:
        raise PipelineError(f"--older-than is {older_than_s / 3600:g}, but must be a number of hours from 0")
    candidates: Iterable[Path]
    match kind:
        case "delta" | "parquet":
            root = _directory(place)
            limit_s = _limit_s(root, older_than_s)
            candidates = _delta(root) if kind == "delta" else _parquet(root, limit_s)
        case "iceberg":
            root = _warehouse(place, properties)
            limit_s = _limit_s(root, older_than_s) if root.is_dir() else 0.0
            candidates = _iceberg(place, root, properties)
        case _:
            raise PipelineError(f"vacuum knows delta:, iceberg: and parquet:, not '{kind}:'")
    files = size = 0
    for path in candidates:
        found = _old_size(path, limit_s)
        if found is None:
            continue
        if not dry_run:
            path.unlink(missing_ok=True)
        files, size = files + 1, size + found
    if not dry_run and kind == "parquet":
        _remove_empty_attempts(Path(place) / ParquetDirectory.STAGING, limit_s)
    return {"pipeline": "vacuum", "files": files, "bytes": size, "dry_run": dry_run}


def _directory(place: str) -> Path:
    path = Path(place)
    if not place or "://" in place:
        raise PipelineError(f"'{place}' is no local directory; vacuum knows local paths only")
    if not path.is_dir():
        raise PipelineError(f"{place} is no directory")
    return path


def _limit_s(root: Path, older_than_s: float) -> float:
    """Files that were changed before this moment go. Age counts by the clock of the file system, and at most up to the
    newest file there: if that clock has just jumped ahead, what a running commit has written is still young beside what
    was written last."""
    now_s = _file_system_s(root)
    if not older_than_s:
        return now_s  # nobody writes: the user says so
    return min(now_s, _newest_s(root)) - older_than_s


def _file_system_s(root: Path) -> float:
    """By a file that is made for it; where none can be made (no room, no right) the wall clock has to do."""
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix=".vacuum-") as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def _newest_s(directory: Path) -> float:
    """Of the files below, whatever they are."""
    newest_s = 0.0
    for path, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                newest_s = max(newest_s, (Path(path) / name).lstat().st_mtime)
    return newest_s


def _old_size(path: Path, limit_s: float) -> int | None:
    """Size of a file that is older than the limit; None for a younger one and for what is not a plain file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_size if path.is_file() and not path.is_symlink() and found.st_mtime < limit_s else None


def _named(directory: Path, *patterns: re.Pattern[str]) -> Iterator[Path]:
    """Plain files of a directory whose names match; nothing when it is not there. Links are not followed."""
    if directory.is_symlink():
        return
    try:
        with os.scandir(directory) as entries:
            for each in entries:
                if each.is_file(follow_symlinks=False) and any(p.fullmatch(each.name) for p in patterns):
                    yield Path(each.path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _directories(directory: Path) -> list[Path]:
    """Real directories inside, no links to others."""
    try:
        with os.scandir(directory) as entries:
            return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


# ---- delta and iceberg ----


def _delta(root: Path) -> list[Path]:
    """Files that no version of the table refers to; an older one may be wanted for time travel."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(str(root))
    except TableNotFoundError as error:
        raise PipelineError(f"{root} is no Delta table") from error
    known = {Path(each).name for each in table.file_uris()}
    for version in range(table.version()):
        try:
            table.load_as_version(version)
        except DeltaError as error:
            if (root / "_delta_log" / f"{version:020}.json").exists():
                raise PipelineError(f"{root}: version {version} cannot be read, nothing is removed: {error}") from error
            continue  # the log was cleaned up to here: nobody can go back to it
        known |= {Path(each).name for each in table.file_uris()}
    return [path for path in _named(root, _WRITTEN) if path.name not in known]


def _warehouse(name: str, properties: dict[str, str]) -> Path:
    if "warehouse" not in properties or "." not in name:
        raise PipelineError("an Iceberg table needs NAMESPACE.TABLE and --catalog warehouse=... (and uri=...)")
    return Path(properties["warehouse"].removeprefix("file://")) / name.replace(".", "/")


def _iceberg(name: str, root: Path, properties: dict[str, str]) -> list[Path]:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = load_catalog("default", **properties).load_table(name)
    except NoSuchTableError as error:
        raise PipelineError(f"there is no Iceberg table '{name}'") from error
    known = {Path(row["file_path"]).name for row in table.inspect.all_files().to_pylist()}
    return [path for path in _named(root / "data", _WRITTEN) if path.name not in known]


# ---- parquet ----


def _parquet(root: Path, limit_s: float) -> Iterable[Path]:
    """Of a sink: what lies in its staging. Of an archive: temporary files, and what a whole, longer file covers."""
    staging = root / ParquetDirectory.STAGING
    found = list(_named(staging, _WRITTEN, _CLAIM))
    for attempt in _directories(staging):
        if _ATTEMPT.fullmatch(attempt.name):
            found += _named(attempt, _WRITTEN, re.compile(ParquetDirectory.COMMIT))
    for stream in _directories(root):
        for topic in _directories(stream):
            found += _named(topic, archive_publish.TEMPORARY)
            found += _covered(topic, limit_s)
    return found


def _covered(topic: Path, limit_s: float) -> list[Path]:
    """Archive files that a longer one covers (earlier versions wrote such). The longer one must be whole, and as old:
    a reader may have planned with the others before it was there."""
    paths = _named(topic, re.compile(r".+\.parquet"))
    files = [(parsed, path) for path in paths if (parsed := parse_file_name(path.name)) is not None]
    files.sort(key=lambda each: (each[0][:3], -each[0][3]))
    found: list[Path] = []
    widest: tuple[tuple[int, int, int, int], Path] | None = None
    for parsed, path in files:
        covers = widest is not None and widest[0][:2] == parsed[:2] and parsed[3] <= widest[0][3]
        if covers and widest is not None:
            if _old_size(widest[1], limit_s) is not None and _is_whole(widest[1]):
                found.append(path)
        else:
            widest = (parsed, path)
    return found


def _is_whole(path: Path) -> bool:
    """Whether every row of an archive file can be read and is what was sent."""
    try:
        metadata = pq.read_metadata(path)
        footer, parsed = Footer.of(metadata), parse_file_name(path.name)
        if parsed is None:
            return False
        names = (footer.stream, footer.topic) if footer is not None else ("", "")
        for _ in archive_files.read(
            str(path), ("offset",), stream=names[0], topic=names[1], key_header=None, start=parsed[2], end=parsed[3]
        ):
            pass
    except (OSError, ValueError, pa.ArrowException, DamagedArchiveError, HistoryGoneError):
        return False
    return True


def _remove_empty_attempts(staging: Path, limit_s: float) -> None:
    for attempt in _directories(staging):
        if _ATTEMPT.fullmatch(attempt.name) and attempt.lstat().st_mtime < limit_s:
            try:
                attempt.rmdir()
            except OSError:
                continue  # something is in it
