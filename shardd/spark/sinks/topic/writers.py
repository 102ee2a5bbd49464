"""format("shardd") for `write` and `writeStream`: rows into a topic. Tasks encode Arrow batches natively and send them;
the driver records in the sink's journal which batch is stored as a whole. docs/spark.md says what is promised.

What decides that a batch is stored:

- The newest record of the journal. `commit` on the driver appends it (`Journal.finish`) when all tasks have had their
  acknowledgements. A task of this batch or of an earlier one sends nothing (`RowsSent.stored_before`).
- Without a journal nothing does: a batch that Spark repeats is sent again.
- Before the record is there, a repeated task sends its rows again: with other ids, or with the same ids at
  `semantics=stable-ids`. At `semantics=idempotent` the numbers of the task's producer decide which of its rows the
  server stores (once.py), and where numbers cannot tell, the ids in the log (stored.py).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from shardd.spark import python_worker
from shardd.spark.positions import OptionError
from shardd.spark.sinks.context import query_of_task, run_of_task, task_number
from shardd.spark.sinks.topic.journal import Journal, JournalState, Places
from shardd.spark.sinks.topic.once import OnceDone, OnceTask, OnceWork
from shardd.spark.sinks.topic.options import Semantics, SinkOptions
from shardd.spark.sinks.topic.rows import RowEncoder, check_columns
from shardd.spark.sinks.topic.sender import Sender
from shardd.spark.sinks.topic.server import SinkServer, keep


class JournalGoneError(RuntimeError):
    """It is not known what is stored of a batch."""


class StoredOtherwiseError(RuntimeError):
    """A batch that is stored already has other rows this time."""


@dataclass
class RowsSent(WriterCommitMessage):
    """What one task did. `stored_before`: nothing was sent, as the batch is stored."""

    application: str
    run: str
    rows: int
    stored_before: bool
    task: int = 0
    once: OnceDone | None = None


@dataclass(frozen=True)
class Work:
    """Which batch a task belongs to: application and run are "" when nothing is to be remembered. `single`: the run has
    no other batch."""

    application: str
    run: str
    batch: int
    single: bool = False


def seed_of(work: Work, task: int) -> bytes:
    """From which the ids of a task's rows are made."""
    named = f"{work.application}\0{work.batch}\0{task}".encode()
    return hashlib.blake2b(named, digest_size=16).digest()


def write(options: SinkOptions, work: Work, batches: Iterator[pa.RecordBatch]) -> RowsSent:
    """One task. All rows are acknowledged when it returns. `RowError`, `FrameDeliveryError`, `TakenOverError`."""
    python_worker.settle()
    server = SinkServer(options)
    once = options.semantics is Semantics.IDEMPOTENT
    try:
        state = JournalState("", -1, 0)
        if options.journal is not None and work.run:
            ends_of = (lambda before: _first_ends(server, options, work, before)) if once else None
            state = Journal(server, options.journal, work.application).begin(work.run, ends_of)
        if state.done >= work.batch and work.run:
            rows = sum(batch.num_rows for batch in batches)
            return RowsSent(work.application, work.run, rows, stored_before=True)
        partitions = server.partitions()
        connection = server.hand_over()
    finally:
        server.close()
    task = task_number()
    seed = seed_of(work, task) if options.semantics.needs_order else None
    encoder = RowEncoder(options, partitions, seed, task)
    if once:
        keep(options, connection)
        named = OnceWork(work.application, work.run, work.batch, task, partitions, work.single)
        sent = OnceTask(options, named, encoder, state).write(batches)
        return RowsSent(work.application, work.run, sent.rows, stored_before=False, task=task, once=sent)
    with Sender(options, connection) as sender:
        for batch in batches:
            for frame in encoder.frames(batch):
                sender.send(frame)
        keep(options, sender.flush())
        return RowsSent(work.application, work.run, sender.rows, stored_before=False)


def _first_ends(server: SinkServer, options: SinkOptions, work: Work, before: JournalState) -> Places:
    """Where the partitions end before the first row. `JournalGoneError`."""
    if work.batch > 0 and not work.single and not before.run:
        raise JournalGoneError(
            f"the query begins with batch {work.batch}, but '{work.application}' has no journal: it is not known what"
            " is stored of this batch. Restore the journal, or write this batch with semantics=stable-ids, or begin"
            " with a new checkpoint, which writes everything again"
        )
    server.partitions()  # makes the topic
    found = server.bounds({options.topic: ()})[options.topic]
    return {each.id: (each.incarnation, each.end) for each in found.partitions}


def commit(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: int) -> None:
    """Records on the driver that the batch is stored. `TakenOverError`, `StoredOtherwiseError`."""
    python_worker.settle()
    done = [each for each in messages if isinstance(each, RowsSent)]
    if options.journal is None or not done or not done[0].run:
        return
    rows = sum(each.rows for each in done)
    server = SinkServer(options)
    try:
        journal = Journal(server, options.journal, done[0].application)
        if not any(each.stored_before for each in done):
            once = [(each.task, each.once) for each in done if each.once is not None]
            tasks = {task: each.producer for task, each in once if each.producer is not None} if once else None
            journal.finish(done[0].run, batch, rows, [each.ends for _, each in once], tasks)
            keep(options, server.hand_over())
            return
        known = journal.rows_of(batch)
    finally:
        server.close()
    if known != rows:
        before = "an unknown number of" if known is None else str(known)
        raise StoredOtherwiseError(
            f"batch {batch} of '{done[0].application}' is stored in '{options.topic}' with {before} rows, this time it"
            f" has {rows}: nothing is sent. The checkpoint is older than the topic's journal; restore the right"
            " checkpoint, or begin with a new one, which writes everything again"
        )


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Spark makes one for each batch on the driver, and copies for the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsSent:
        query, batch = query_of_task()
        run = run_of_task()
        if not (query and batch and run):
            raise RuntimeError("Spark did not tell the task which query it belongs to; nothing is sent")
        return write(self._options, Work(query, run, int(batch)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was sent is stored: the batch is run again."""


class TopicBatchWriter(DataSourceArrowWriter):
    """`df.write`. A repetition is known when the caller names an application and a version."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        run = uuid.uuid4().hex if options.application is not None else ""
        self._work = Work(options.application or "", run, options.version, single=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsSent:
        return write(self._options, self._work, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, messages, self._options.version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As for streams."""


def check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    """Whether a DataFrame can be written. `OptionError`."""
    if overwrite:
        raise OptionError("the sink shardd only appends: use mode('append'), for streams outputMode('append')")
    check_columns([(each.name, each.dataType.simpleString()) for each in schema.fields], options)
