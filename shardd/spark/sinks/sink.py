"""format("shardd_delta"), format("shardd_iceberg"), format("shardd_parquet"): exactly-once sinks for streams, and for
batch writes with the options `appId` and `appVersion`."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from shardd.config.digits import number_of
from shardd.spark.positions import OptionError
from shardd.spark.sinks import files
from shardd.spark.sinks.context import query_of_task, task_number
from shardd.spark.sinks.delta import DeltaLake
from shardd.spark.sinks.files import WrittenFile
from shardd.spark.sinks.iceberg import IcebergTable
from shardd.spark.sinks.parquet import ParquetDirectory
from shardd.spark.sinks.tables import LakeTable, Step


@dataclass
class FilesWritten(WriterCommitMessage):
    """What one task wrote, and for which query."""

    query: str
    files: list[WrittenFile]


def _write(table: LakeTable, batches: Iterator[pa.RecordBatch], file_bytes: int) -> FilesWritten:
    query, batch = query_of_task()
    system, directory = table.place()
    prefix = f"part-{batch or 'x'}-{task_number():05}"
    return FilesWritten(query, files.write(system, directory, batches, prefix=prefix, file_bytes=file_bytes))


def _collect(messages: list[WriterCommitMessage | None]) -> tuple[str, list[WrittenFile]]:
    good = [each for each in messages if isinstance(each, FilesWritten)]
    return next((each.query for each in good), ""), [file for each in good for file in each.files]


class StreamSink(DataSourceStreamArrowWriter):
    """Spark makes one for each batch on the driver, and copies for the tasks."""

    def __init__(self, table: LakeTable, schema: pa.Schema, *, overwrite: bool, file_bytes: int) -> None:
        self._table = table
        self._schema = schema
        self._overwrite = overwrite
        self._file_bytes = file_bytes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return _write(self._table, iterator, self._file_bytes)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query, written = _collect(messages)
        if not written and not self._overwrite:
            return  # a batch without rows leaves no trace
        if not query:
            raise RuntimeError("Spark did not tell the tasks which query they belong to; nothing is committed")
        self._table.commit(written, self._schema, (Step(query, batchId),), overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Files that were written stay until `shardd pipeline vacuum`: nobody refers to them."""


class BatchSink(DataSourceArrowWriter):
    """`df.write`. Idempotent when the caller names an application and a version."""

    def __init__(
        self, table: LakeTable, schema: pa.Schema, *, overwrite: bool, file_bytes: int, application: str, version: int
    ) -> None:
        self._table = table
        self._schema = schema
        self._overwrite = overwrite
        self._file_bytes = file_bytes
        self._application = application
        self._version = version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return _write(self._table, iterator, self._file_bytes)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _, written = _collect(messages)
        steps = (Step(self._application, self._version),)
        self._table.commit(written, self._schema, steps, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As for streams."""


class LakeSink(DataSource):
    """What the three formats share."""

    @abstractmethod
    def table(self) -> LakeTable:
        """The table that the options name. `OptionError`."""

    @classmethod
    @abstractmethod
    def option_names(cls) -> tuple[str, ...]:
        """Names of options, in lower case; ending in a dot for a family."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        self._check()
        for name in ("appId", "appVersion"):
            if self.options.get(name) is not None:
                raise OptionError(f"option '{name}' is for batch writes; a stream is known by its checkpoint")
        return StreamSink(self.table(), _arrow(schema), overwrite=overwrite, file_bytes=self._file_bytes())

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        self._check()
        application = self.options.get("appid") or f"batch-{uuid.uuid4()}"
        version = self._number("appversion", 0)
        return BatchSink(
            self.table(),
            _arrow(schema),
            overwrite=overwrite,
            file_bytes=self._file_bytes(),
            application=application,
            version=version,
        )

    def _file_bytes(self) -> int:
        return self._number("filebytes", files.FILE_BYTES)

    def _number(self, name: str, default: int) -> int:
        text = self.options.get(name)
        if text is None:
            return default
        number = number_of(text)
        if number is None:
            raise OptionError(f"option '{name}' of {self.name()} is '{text}', but must be a whole number")
        return number

    def _flag(self, name: str) -> bool:
        text = (self.options.get(name) or "false").strip().lower()
        if text not in ("true", "false"):
            raise OptionError(f"option '{name}' of {self.name()} is '{text}', but must be true or false")
        return text == "true"

    def check(self) -> None:
        """Whether the options are right. `OptionError`."""
        self._check()
        self.table()
        self._file_bytes()

    def _check(self) -> None:
        known = (*self.option_names(), "appid", "appversion", "filebytes", "checkpointlocation")
        families = tuple(name for name in known if name.endswith("."))
        for name in self.options:
            if name.lower() not in known and not name.lower().startswith(families or ("\0",)):
                raise OptionError(f"unknown option '{name}' of {self.name()}; known are {', '.join(known)}")

    def needed(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise OptionError(f"{self.name()} needs the option '{name}'")
        return value


class DeltaSink(LakeSink):
    @classmethod
    def name(cls) -> str:
        return "shardd_delta"

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return ("path", "mergeschema")

    def table(self) -> LakeTable:
        return DeltaLake(self.needed("path"), merge_schema=self._flag("mergeSchema"))


class ParquetSink(LakeSink):
    @classmethod
    def name(cls) -> str:
        return "shardd_parquet"

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return ("path",)

    def table(self) -> LakeTable:
        return ParquetDirectory(self.needed("path"))


class IcebergSink(LakeSink):
    """Options `table` (namespace.name), `catalog.type`, `catalog.uri`, `catalog.warehouse` and others of pyiceberg."""

    @classmethod
    def name(cls) -> str:
        return "shardd_iceberg"

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return ("table", "path", "catalog", "catalog.")

    def table(self) -> LakeTable:
        properties: Mapping[str, str] = {
            name.removeprefix("catalog."): value for name, value in self.options.items() if name.startswith("catalog.")
        }
        if "warehouse" not in properties:
            raise OptionError("shardd_iceberg needs the option 'catalog.warehouse'")
        table = self.options.get("table") or self.needed("path")
        if "." not in table:
            raise OptionError(f"option 'table' of shardd_iceberg is '{table}', but must be namespace.name")
        return IcebergTable(self.options.get("catalog") or "default", properties, table)


def _arrow(schema: StructType) -> Any:
    return to_arrow_schema(schema, timezone="UTC")
