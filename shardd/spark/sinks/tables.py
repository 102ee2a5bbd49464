"""Where written files are committed: a Delta table, an Iceberg table, a directory. Runs on the driver.

Each commit is idempotent: the query and its batch are recorded in the same transaction as the files, and a batch that
is there already is skipped. After a crash Spark runs a batch again under the same id.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from shardd.spark.archive_files import file_system
from shardd.spark.positions import OptionError
from shardd.spark.sinks.files import WrittenFile

_log = logging.getLogger(__name__)
COMMIT_ATTEMPTS: Final = 10


class CommitConflictError(RuntimeError):
    """Other writers committed first, again and again."""


class LakeTable(ABC):
    """One table. Pickles; opens what it needs when it is used."""

    @abstractmethod
    def place(self) -> tuple[pafs.FileSystem, str]:
        """File system and directory that tasks write to."""

    @abstractmethod
    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, *, application: str, version: int, overwrite: bool
    ) -> bool:
        """Adds (or with `overwrite` exchanges) the files, once for each application and version. False: it was
        there."""

    @abstractmethod
    def version(self, application: str) -> int | None:
        """The highest version committed for an application; None for none."""


class DeltaLake(LakeTable):
    """A Delta table through the deltalake library."""

    def __init__(self, path: str) -> None:
        self._path = path if "://" in path else str(Path(path).absolute())

    def place(self) -> tuple[pafs.FileSystem, str]:
        system, inner = file_system(self._path)
        system.create_dir(inner, recursive=True)
        return system, inner

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, *, application: str, version: int, overwrite: bool
    ) -> bool:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.exceptions import CommitFailedError, TableNotFoundError
        from deltalake.transaction import create_table_with_add_actions

        actions = [_add_action(each) for each in files]
        properties = CommitProperties(app_transactions=[Transaction(application, version)], max_commit_retries=0)
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                try:
                    table = DeltaTable(self._path)
                except TableNotFoundError:
                    create_table_with_add_actions(
                        self._path, _delta_schema(schema), actions, "error", commit_properties=properties
                    )
                    return True
                done = table.transaction_version(application)
                if done is not None and done >= version:
                    return False
                mode = "overwrite" if overwrite else "append"
                table.create_write_transaction(actions, mode, schema, commit_properties=properties)
                return True
            except CommitFailedError as error:
                _log.info("commit %d of %s: %s; looking again", version, self._path, error)
                time.sleep(0.05 * (attempt + 1))
        raise CommitConflictError(f"{self._path}: {COMMIT_ATTEMPTS} commits of version {version} lost against others")

    def version(self, application: str) -> int | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._path).transaction_version(application)
        except TableNotFoundError:
            return None


def _delta_schema(schema: pa.Schema) -> Any:
    from deltalake import Schema

    return Schema.from_arrow(schema)


def _add_action(file: WrittenFile) -> Any:
    from deltalake.transaction import AddAction

    stats = json.dumps({"numRecords": file.rows})
    return AddAction(Path(file.path).name, file.size_bytes, {}, time.time_ns() // 1_000_000, True, stats)


class IcebergTable(LakeTable):
    """A table of an Iceberg catalog through pyiceberg; made with the first commit."""

    QUERY: Final = "shardd.application"
    BATCH: Final = "shardd.version"

    def __init__(self, catalog: str, properties: Mapping[str, str], table: str) -> None:
        self._catalog_name = catalog
        self._properties = dict(properties)
        self._table_name = table

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self._catalog_name, **self._properties)

    def place(self) -> tuple[pafs.FileSystem, str]:
        """Below the warehouse, so that files can be written before the table is there."""
        warehouse = self._properties["warehouse"].removeprefix("file://")
        system, inner = file_system(warehouse)
        directory = f"{inner.rstrip('/')}/{self._table_name.replace('.', '/')}/data"
        system.create_dir(directory, recursive=True)
        return system, directory

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, *, application: str, version: int, overwrite: bool
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
        from pyiceberg.expressions import AlwaysTrue

        catalog = self._catalog()
        record = {self.QUERY: application, self.BATCH: str(version)}
        scheme = self._properties["warehouse"].partition("://")[0] if "://" in self._properties["warehouse"] else "file"
        paths = [f"{scheme}://{each.path}" for each in files]
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                try:
                    table = catalog.load_table(self._table_name)
                except NoSuchTableError:
                    catalog.create_namespace_if_not_exists(self._table_name.rpartition(".")[0])
                    table = catalog.create_table_if_not_exists(self._table_name, schema)
                done = self._version_in(table, application)
                if done is not None and done >= version:
                    return False
                with table.transaction() as transaction:
                    if overwrite:
                        transaction.delete(AlwaysTrue(), snapshot_properties=record)
                    transaction.add_files(paths, snapshot_properties=record)
                return True
            except CommitFailedException as error:
                _log.info("commit %d of %s: %s; looking again", version, self._table_name, error)
                time.sleep(0.05 * (attempt + 1))
        raise CommitConflictError(f"{self._table_name}: {COMMIT_ATTEMPTS} commits of {version} lost against others")

    def version(self, application: str) -> int | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._version_in(self._catalog().load_table(self._table_name), application)
        except NoSuchTableError:
            return None

    def _version_in(self, table: Any, application: str) -> int | None:
        found: int | None = None
        for snapshot in table.snapshots():
            summary = snapshot.summary
            if summary is None or summary.get(self.QUERY) != application:
                continue
            recorded = int(summary.get(self.BATCH) or 0)
            found = recorded if found is None else max(found, recorded)
        return found


class ParquetDirectory(LakeTable):
    """A local directory of batches, `batch=<n>/*.parquet`: a batch appears whole, by one rename, and once.

    `_application` holds the query that writes here: another one (a lost checkpoint) would write everything again.
    """

    APPLICATION: Final = "_application"
    STAGING: Final = "_staging"

    def __init__(self, path: str) -> None:
        if "://" in path:
            raise OptionError("shardd_parquet writes to local paths only; use shardd_delta for object stores")
        self._path = Path(path).absolute()

    def place(self) -> tuple[pafs.FileSystem, str]:
        staging = self._path / self.STAGING
        staging.mkdir(parents=True, exist_ok=True)
        return pafs.LocalFileSystem(), str(staging)

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, *, application: str, version: int, overwrite: bool
    ) -> bool:
        if overwrite:
            raise OptionError("shardd_parquet appends; outputMode 'complete' needs shardd_delta or shardd_iceberg")
        self._claim(application)
        target = self._path / f"batch={version}"
        if target.exists():
            return False
        ready = self._path / self.STAGING / f"batch={version}"
        shutil.rmtree(ready, ignore_errors=True)  # of an attempt that was killed
        ready.mkdir(parents=True)
        for each in files:
            name = ready / Path(each.path).name
            Path(each.path).rename(name)
            sync_path(name)
        sync_path(ready)
        ready.rename(target)
        sync_path(self._path)
        return True

    def version(self, application: str) -> int | None:
        marker = self._path / self.APPLICATION
        if not marker.is_file() or marker.read_text() != application:
            return None
        batches = [int(each.name.removeprefix("batch=")) for each in self._path.glob("batch=*")]
        return max(batches, default=None)

    def _claim(self, application: str) -> None:
        marker = self._path / self.APPLICATION
        try:
            with marker.open("x") as file:
                file.write(application)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            owner = marker.read_text()
            if owner not in (application, ""):
                raise OptionError(
                    f"{self._path} belongs to the query {owner}, this is {application}: with another checkpoint"
                    " everything would be written again; use an empty directory or the old checkpoint"
                ) from None
            marker.write_text(application)


def sync_path(path: Path) -> None:
    """Brings a file or a directory to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
