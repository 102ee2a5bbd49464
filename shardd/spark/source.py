"""The data source `shardd` for batch queries and streams, and its sink. See docs/spark.md; facts about PySpark that
shaped it: the reader has no filter pushdown (4.3 answers wrongly when a DataFrame is used twice), and a schema given by
the user is how columns are pruned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shardd.spark import columns, durable, leases, planner, python_worker, reading, rollbacks, table_options
from shardd.spark.loss import Losses
from shardd.spark.options import ReadMode, SourceOptions, parse
from shardd.spark.planner import Slice
from shardd.spark.positions import OptionError
from shardd.spark.reading import SlicePartition, TaskSettings
from shardd.spark.retry import Retries
from shardd.spark.server import Server
from shardd.spark.stream import ShardStreamReader

if TYPE_CHECKING:
    from shardd.spark.sinks.topic.writers import TopicBatchWriter, TopicStreamWriter


def make_server(options: SourceOptions) -> Server:
    """The driver's face of the server."""
    if options.read_mode is ReadMode.ARCHIVE:
        from shardd.spark.archive_server import ArchiveServer  # loads Parquet

        return ArchiveServer(options.archive_path or "")
    return Server(
        options.servers,
        options.credentials,
        timeout_s=options.poll_timeout_ms / 1000,
        retries=Retries(options.retries, options.retry_interval_ms / 1000),
    )


class ShardDataSource(DataSource):
    """format("shardd")."""

    @classmethod
    def name(cls) -> str:
        return "shardd"

    def schema(self) -> str:
        python_worker.settle()
        return columns.sql_schema(parse(table_options.own(self.options), streaming=False).columns)

    def reader(self, schema: StructType) -> ShardReader:
        table_options.check_given(self.options)
        return ShardReader(parse(self.options, streaming=False), _names(schema))

    def streamReader(self, schema: StructType) -> ShardStreamReader:  # noqa: N802 - the name that Spark calls
        options = parse(self.options, streaming=True)
        return ShardStreamReader(options, make_server(options), _names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        from shardd.spark.sinks.topic import options as sink_options  # readers do not load the sinks
        from shardd.spark.sinks.topic import writers

        table_options.check_given(self.options)
        options = sink_options.parse(self.options, streaming=False)
        writers.check(options, schema, overwrite=overwrite)
        return writers.TopicBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        from shardd.spark.sinks.topic import options as sink_options
        from shardd.spark.sinks.topic import writers

        options = sink_options.parse(self.options, streaming=True)
        writers.check(options, schema, overwrite=overwrite)
        return writers.TopicStreamWriter(options)


def _names(schema: StructType) -> tuple[str, ...]:
    """The columns asked for; their types must be those of the source."""
    try:
        names = columns.check_names(schema.fieldNames())
    except columns.UnknownColumnError as error:
        raise OptionError(str(error)) from error
    for each in schema.fields:
        kind, given = columns.ALL[each.name].sql, each.dataType.simpleString()
        if given != kind:
            raise OptionError(f"column '{each.name}' of the source shardd is {kind}, not {given}")
    return names


class ShardReader(DataSourceReader):
    """One range, planned at the first action; later actions on the same DataFrame read the same range."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._settings = TaskSettings.of(options, names)

    def partitions(self) -> list[InputPartition]:
        python_worker.settle()
        server = make_server(self._options)
        try:
            tasks = rollbacks.on_one_connection(server, lambda: self._planned(server))
            leased = leases.take(server, self._options, tasks)
        finally:
            server.close()
        return [SlicePartition(*task, leased=each) for task, each in zip(tasks, leased, strict=True)]

    def _planned(self, server: Server) -> list[tuple[Slice, ...]]:
        options = self._options
        bounds = durable.discover(server, options, segments=planner.needs_segments(options))
        losses = Losses(accepted=not options.fail_on_data_loss)
        options = rollbacks.with_own_archives(server, options, bounds, losses)
        start = planner.resolve(server, options, options.starting, bounds, ending=False)
        end = planner.resolve(server, options, options.ending, bounds, ending=True)
        end = rollbacks.with_last_records(server, options, bounds, start, end)
        end = planner.with_cuts(options, bounds, start, end)
        return planner.tasks(planner.slices(options, bounds, start, end, losses), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._settings, partition)
