"""vacuum: removes files that no commit refers to: the leftovers of tasks that were killed or lost against their
repetition."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from shardd.spark.archive_files import parse_file_name
from shardd.spark.pipelines.archive import TEMPORARY_SUFFIX
from shardd.spark.pipelines.common import PipelineError
from shardd.spark.sinks.tables import ParquetDirectory

DAY_S: Final = 86_400


def vacuum(kind: str, place: str, *, older_than_s: int, dry_run: bool, properties: dict[str, str]) -> dict[str, Any]:
    """Local paths only. Returns what was (or would be) removed."""
    match kind:
        case "delta":
            candidates = _delta(Path(place))
        case "iceberg":
            candidates = _iceberg(place, properties)
        case "parquet":
            candidates = _parquet(Path(place))
        case _:
            raise PipelineError(f"vacuum knows delta:, iceberg: and parquet:, not '{kind}:'")
    limit = time.time() - older_than_s
    orphans = [path for path in candidates if path.stat().st_mtime < limit]
    size = sum(path.stat().st_size for path in orphans)
    if not dry_run:
        for path in orphans:
            path.unlink()
    return {"pipeline": "vacuum", "files": len(orphans), "bytes": size, "dry_run": dry_run}


def _delta(root: Path) -> list[Path]:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(str(root))
    except TableNotFoundError as error:
        raise PipelineError(f"{root} is no Delta table") from error
    # a file that an older version refers to is not an orphan: time travel needs it
    known: set[str] = set()
    for version in range(table.version() + 1):
        try:
            table.load_as_version(version)
        except Exception:
            continue
        known |= {Path(each).name for each in table.file_uris()}
    return [path for path in root.glob("*.parquet") if path.name not in known]


def _iceberg(name: str, properties: dict[str, str]) -> list[Path]:
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **properties).load_table(name)
    known = {Path(row["file_path"]).name for row in table.inspect.all_files().to_pylist()}
    directory = Path(properties["warehouse"].removeprefix("file://")) / name.replace(".", "/") / "data"
    return [path for path in directory.glob("*.parquet") if path.name not in known]


def _parquet(root: Path) -> list[Path]:
    """Staging of the sink, temporary files of the archive, and archive files that a longer one covers."""
    found = [path for path in (root / ParquetDirectory.STAGING).rglob("*") if path.is_file()]
    found += root.rglob(f"*{TEMPORARY_SUFFIX}")
    for directory in {path.parent for path in root.rglob("*.parquet")}:
        files = [(parsed, path) for path in directory.iterdir() if (parsed := parse_file_name(path.name)) is not None]
        for (partition, incarnation, start, end), path in files:
            same = [each for each, other in files if other != path and each[:2] == (partition, incarnation)]
            if any(low <= start and end <= high for _, _, low, high in same):
                found.append(path)
    return found
