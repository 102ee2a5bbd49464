"""A local directory of batches, `batch=<n>/*.parquet`: a batch appears whole, by one rename, and once."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from shardd.config.digits import number_of
from shardd.spark.positions import OptionError
from shardd.spark.sinks.files import WrittenFile
from shardd.spark.sinks.tables import CommitConflictError, LakeTable, Step, link_if_possible, sync_path


class ParquetDirectory(LakeTable):
    """`_application` holds the query that writes here: another one (a lost checkpoint) would write everything again.

    Each attempt of a commit has a directory of its own in `_staging`. It holds `_commit` besides the files, so that it
    is never empty: a rename onto a batch that is there fails then on every file system, and one attempt wins.
    """

    APPLICATION: Final = "_application"
    STAGING: Final = "_staging"
    COMMIT: Final = "_commit"

    def __init__(self, path: str) -> None:
        if "://" in path:
            raise OptionError("shardd_parquet writes to local paths only; use shardd_delta for object stores")
        self._path = Path(path).absolute()
        self._last = max(self._batches(), default=-1)  # before this one's tasks began

    def place(self) -> tuple[pafs.FileSystem, str]:
        staging = self._path / self.STAGING
        staging.mkdir(parents=True, exist_ok=True)
        return pafs.LocalFileSystem(), str(staging)

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, steps: Sequence[Step], *, overwrite: bool = False
    ) -> bool:
        (step,) = steps
        if overwrite:
            raise OptionError("shardd_parquet appends; outputMode 'complete' needs shardd_delta or shardd_iceberg")
        self._claim(step.application)
        target = self._path / f"batch={step.version}"
        if target.exists() and step.version <= self._last:
            return False
        ready = self._path / self.STAGING / f"batch={step.version}.{uuid.uuid4().hex}"
        ready.mkdir(parents=True)
        try:
            self._stage(files, step, ready)
            ready.rename(target)
        except OSError as error:
            if target.exists():
                raise self._told(step) from error
            raise
        finally:
            shutil.rmtree(ready, ignore_errors=True)  # nothing when it has its name
        sync_path(self._path)
        return True

    def _told(self, step: Step) -> CommitConflictError:
        return CommitConflictError(
            f"{self._path}: batch {step.version} of the query {step.application} was committed by another driver while"
            " this one was at it; nothing of this one is committed. A query must run once: stop one of the two"
        )

    def _stage(self, files: Sequence[WrittenFile], step: Step, ready: Path) -> None:
        for each in files:
            name = ready / Path(each.path).name
            Path(each.path).rename(name)
            sync_path(name)
        listed = [{"name": Path(each.path).name, "bytes": each.size_bytes, "rows": each.rows} for each in files]
        marker = ready / self.COMMIT
        marker.write_text(json.dumps({"application": step.application, "batch": step.version, "files": listed}))
        sync_path(marker)
        sync_path(ready)

    def _batches(self) -> list[int]:
        names = (each.name.removeprefix("batch=") for each in self._path.glob("batch=*"))
        return [number for each in names if (number := number_of(each)) is not None]

    def version(self, application: str) -> int | None:
        marker = self._path / self.APPLICATION
        if not marker.is_file() or marker.read_text() != application:
            return None
        return max(self._batches(), default=None)

    def _claim(self, application: str) -> None:
        """The first query that commits owns the directory. The marker appears with its content, by one link."""
        marker = self._path / self.APPLICATION
        if not marker.exists():
            fresh = self._path / self.STAGING / f"{self.APPLICATION}.{uuid.uuid4().hex}"
            fresh.parent.mkdir(parents=True, exist_ok=True)
            try:
                fresh.write_text(application)
                sync_path(fresh)
                if not link_if_possible(fresh, marker):
                    with marker.open("x") as file:
                        file.write(application)
                sync_path(marker)
                sync_path(self._path)
            except FileExistsError:
                pass  # another driver was faster
            finally:
                fresh.unlink(missing_ok=True)
        owner = marker.read_text()
        if owner != application:
            raise OptionError(
                f"{self._path} belongs to the query {owner or '(unknown)'}, this is {application}: with another"
                " checkpoint everything would be written again; use an empty directory or the old checkpoint"
            )
