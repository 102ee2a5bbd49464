"""A table of an Iceberg catalog through pyiceberg; made with the first commit.

What was committed stands in the properties of the table, in the same commit as the snapshot: snapshots expire,
properties do not. Earlier versions wrote it into the snapshots, where it is still read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from shardd.spark.archive_listing import file_system
from shardd.spark.sinks.files import WrittenFile
from shardd.spark.sinks.tables import (
    COMMIT_ATTEMPTS,
    RETRY_PAUSE_S,
    ListedTable,
    SchemaMismatchError,
    Step,
    is_repetition,
    lost_again,
)

_log = logging.getLogger(__name__)
MAKE_ATTEMPTS: Final = 4
_RETRIES: Final = "commit.retry.num-retries"


class IcebergTable(ListedTable):
    TRANSACTION: Final = "shardd.transaction."  # and the application: a property of the table
    SNAPSHOT_APPLICATION: Final = "shardd.application"  # properties of snapshots of earlier versions
    SNAPSHOT_VERSION: Final = "shardd.version"

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
        self, files: Sequence[WrittenFile], schema: pa.Schema, steps: Sequence[Step], *, overwrite: bool = False
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        catalog = self._catalog()
        scheme = self._properties["warehouse"].partition("://")[0] if "://" in self._properties["warehouse"] else "file"
        paths = [f"{scheme}://{each.path}" for each in files]
        record = {f"{self.TRANSACTION}{each.application}": str(each.version) for each in steps}
        for attempt in range(COMMIT_ATTEMPTS):
            table = self._open_or_make(catalog, schema)
            if attempt and _holds(table, files):
                return True  # it was this one's commit, only its answer was lost
            if is_repetition(steps, lambda name, seen=table: self._version_in(seen, name), self._table_name):  # type: ignore[misc]
                return False
            try:
                self._write(table, paths, record, overwrite)
                return True
            except (CommitFailedException, ValidationException) as error:
                _log.info("commit of %s: %s; looking again", self._table_name, error)
                time.sleep(RETRY_PAUSE_S * (attempt + 1))
        raise lost_again(self._table_name)

    def _open_or_make(self, catalog: Any, schema: pa.Schema) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        for attempt in range(MAKE_ATTEMPTS):
            try:
                return catalog.load_table(self._table_name)
            except NoSuchTableError:
                try:
                    catalog.create_namespace_if_not_exists(self._table_name.rpartition(".")[0])
                    return catalog.create_table_if_not_exists(self._table_name, schema)
                except Exception as error:  # another writer may be making either: catalogs tell it in many ways
                    _log.info("making %s: %s; looking again", self._table_name, error)
                    time.sleep(RETRY_PAUSE_S * (attempt + 1))
        catalog.create_namespace_if_not_exists(self._table_name.rpartition(".")[0])
        return catalog.create_table_if_not_exists(self._table_name, schema)

    def _write(self, table: Any, paths: list[str], record: dict[str, str], overwrite: bool) -> None:
        """One snapshot on top of the one that was looked at. pyiceberg would take another one that came meanwhile for
        its base; then the steps would be proven by nothing, so it must not try again by itself."""
        from pyiceberg.expressions import AlwaysTrue

        table.metadata.properties[_RETRIES] = "0"  # of this copy in memory alone
        try:
            with table.transaction() as transaction:
                transaction.set_properties(record)
                if overwrite:
                    transaction.delete(AlwaysTrue())
                transaction.add_files(paths)
        except ValueError as error:
            raise SchemaMismatchError(
                f"{self._table_name}: the rows do not fit into the table: {' '.join(str(error).split())}"
            ) from error

    def version(self, application: str) -> int | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._version_in(self._catalog().load_table(self._table_name), application)
        except NoSuchTableError:
            return None

    def paths(self) -> list[str]:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return _paths(self._catalog().load_table(self._table_name))
        except NoSuchTableError:
            return []

    def _version_in(self, table: Any, application: str) -> int | None:
        stored = table.properties.get(f"{self.TRANSACTION}{application}")
        found = None if stored is None else int(stored)
        for snapshot in table.snapshots():
            summary = snapshot.summary
            if summary is None or summary.get(self.SNAPSHOT_APPLICATION) != application:
                continue
            recorded = int(summary.get(self.SNAPSHOT_VERSION) or 0)
            found = recorded if found is None else max(found, recorded)
        return found


def _holds(table: Any, files: Sequence[WrittenFile]) -> bool:
    there = {Path(each).name for each in _paths(table)}
    return bool(files) and all(Path(each.path).name in there for each in files)


def _paths(table: Any) -> list[str]:
    return [row["file_path"] for row in table.inspect.files().select(["file_path"]).to_pylist()]
