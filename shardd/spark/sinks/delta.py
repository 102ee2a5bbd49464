"""A Delta table through the deltalake library. Its log is the proof: a commit that read version n writes n + 1, and
exactly one writer can."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake import Schema as DeltaSchema

_log = logging.getLogger(__name__)
_FORGETS: Final = "delta.setTransactionRetentionDuration"
_COMPUTED: Final = ("delta.generationExpression", "delta.identity", "delta.invariants")


class DeltaLake(ListedTable):
    """`merge_schema`: new columns of the rows become columns of the table."""

    def __init__(self, path: str, *, merge_schema: bool = False) -> None:
        self._path = path if "://" in path else str(Path(path).absolute())
        self._merge_schema = merge_schema

    def place(self) -> tuple[pafs.FileSystem, str]:
        system, inner = file_system(self._path)
        system.create_dir(inner, recursive=True)
        return system, inner

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, steps: Sequence[Step], *, overwrite: bool = False
    ) -> bool:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError

        incoming = Schema.from_arrow(schema)
        actions = [_add_action(each) for each in files]
        transactions = [Transaction(each.application, each.version) for each in steps]
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
        for attempt in range(COMMIT_ATTEMPTS):
            table = self._open()
            if attempt and table is not None and self._holds(table, files):
                return True  # it was this one's commit, only its answer was lost
            recorded = table.transaction_version if table is not None else lambda _: None
            if is_repetition(steps, recorded, self._path):
                return False
            try:
                if table is None:
                    self._create(incoming, actions, properties)
                elif fresh := self._fit(table, incoming):
                    _add_columns(table, fresh)
                    continue  # others may have committed since: look again
                else:
                    mode = "overwrite" if overwrite else "append"
                    table.create_write_transaction(actions, mode, table.schema(), commit_properties=properties)
                return True
            except CommitFailedError as error:
                _log.info("commit of %s: %s; looking again", self._path, error)
                time.sleep(RETRY_PAUSE_S * (attempt + 1))
        raise lost_again(self._path)

    def _create(self, schema: DeltaSchema, actions: list[Any], properties: Any) -> None:
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        try:
            create_table_with_add_actions(self._path, schema, actions, "error", commit_properties=properties)
        except DeltaError as error:
            if self._open() is None:
                raise
            raise CommitFailedError(str(error)) from error  # another writer made it first

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._path)
        except TableNotFoundError:
            return None

    @staticmethod
    def _holds(table: DeltaTable, files: Sequence[WrittenFile]) -> bool:
        there = {Path(each).name for each in table.file_uris()}
        return bool(files) and all(Path(each.path).name in there for each in files)

    def _fit(self, table: DeltaTable, incoming: DeltaSchema) -> list[Any]:
        """Columns that the table must get before files of the incoming schema fit into it. `SchemaMismatchError`."""
        self._check_features(table)
        there = {each.name.lower(): each for each in table.schema().fields}
        fresh = []
        for field in incoming.fields:
            known = there.pop(field.name.lower(), None)
            if known is None:
                fresh.append(field)
            elif known.name != field.name:
                raise self._misfit(f"the rows have a column '{field.name}', the table calls it '{known.name}'")
            elif _kind(known) != _kind(field):
                raise self._misfit(f"column '{field.name}' is {_text(field)}, but {_text(known)} in the table")
            elif field.nullable and not known.nullable:
                raise self._misfit(f"column '{field.name}' is NOT NULL in the table, but may be null in the rows")
        needed = [each.name for each in there.values() if not each.nullable]
        if needed:
            raise self._misfit(f"the table has a column '{needed[0]}' that is NOT NULL, the rows have none")
        if fresh and not self._merge_schema:
            raise self._misfit(
                f"the table has no column '{fresh[0].name}'; drop it from the rows, or set the option mergeSchema to"
                " true to add it"
            )
        return fresh

    def _check_features(self, table: DeltaTable) -> None:
        """What a table may demand of its writers beyond columns and types."""
        metadata = table.metadata()
        settings = metadata.configuration
        if metadata.partition_columns:
            columns = ", ".join(metadata.partition_columns)
            raise self._misfit(f"the table is partitioned by {columns}; this sink writes tables without partitions")
        if settings.get("delta.columnMapping.mode", "none") != "none":
            raise self._misfit("the table maps the names of its columns (delta.columnMapping.mode)")
        if any(name.startswith("delta.constraints.") for name in settings):
            raise self._misfit("the table has CHECK constraints, which this sink cannot check")
        if _FORGETS in settings:
            raise self._misfit(
                f"the table forgets its transactions after {settings[_FORGETS]}, so a batch could be committed twice;"
                f" unset {_FORGETS}"
            )
        for field in table.schema().fields:
            if any(name.startswith(_COMPUTED) for name in field.metadata):
                raise self._misfit(f"column '{field.name}' of the table is generated or has an invariant")

    def _misfit(self, why: str) -> SchemaMismatchError:
        return SchemaMismatchError(f"{self._path}: {why}. Nothing is committed")

    def version(self, application: str) -> int | None:
        table = self._open()
        return None if table is None else table.transaction_version(application)

    def paths(self) -> list[str]:
        table = self._open()
        return [] if table is None else list(table.file_uris())


def _add_columns(table: DeltaTable, fields: list[Any]) -> None:
    """In a commit of its own: older rows have nulls there. CommitFailedError."""
    from deltalake import CommitProperties
    from deltalake.schema import Field

    nullable = [Field(each.name, each.type, nullable=True) for each in fields]
    table.alter.add_columns(nullable, commit_properties=CommitProperties(max_commit_retries=0))


def _kind(field: Any) -> Any:
    """Type of a column without what is nullable inside of it."""
    return _plain(json.loads(field.to_json())["type"])


def _plain(kind: Any) -> Any:
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: _plain(value) for name, value in kind.items() if name not in left_out}
    return [_plain(each) for each in kind] if isinstance(kind, list) else kind


def _text(field: Any) -> str:
    kind = _kind(field)
    return kind if isinstance(kind, str) else json.dumps(kind)


def _add_action(file: WrittenFile) -> Any:
    from deltalake.transaction import AddAction

    stats = json.dumps({"numRecords": file.rows})
    return AddAction(Path(file.path).name, file.size_bytes, {}, time.time_ns() // 1_000_000, True, stats)
