"""The journal of a sink: its stored batches, and the run that writes. Each application (a query, or the `appId` of
batch writes) has a topic in a stream of its own.

The newest record names the batch that is stored as a whole and the run that writes. The log gives the order: a later
run takes over, and the run before gets an error. docs/adr/0072-a-sink-remembers-at-the-server.md

With semantics `idempotent` records also say which producer each task has, how far that has counted its batches, and
below which offsets no row of the next batch can be. docs/adr/0089-a-sink-that-stores-rows-once.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from shardd.client.messages import batch_head, encode_batch, encode_record
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import PollingKind
from shardd.spark.positions import TopicName
from shardd.spark.server import NOT_FOUND, poll_request
from shardd.spark.sinks.topic.server import RightMissingError, SinkServer

NEWEST: Final = 16  # records that are looked at for the state
HISTORY: Final = 1000  # and for what was before
NUMBERS_MAX: Final = 2048  # of batches, all tasks and partitions together, in one record
_NAME_MAX: Final = 200
_ANY_OTHER: Final = 0  # no partition has this incarnation

Place = tuple[int, int]  # incarnation of a partition, offset
Places = dict[int, Place]


class JournalError(PermissionError):
    """The user may not read or write the journal."""


class TakenOverError(RuntimeError):
    """Another run of the same query writes now."""


class TaskProducer(msgspec.Struct, frozen=True, array_like=True):
    """The producer of a task. `epoch`: that of its last batch, -1 when none is stored as a whole. `numbers`: of its
    next batch in each partition, in this epoch; None: they are not known, or not those of the run that reads this.
    `renew_at_us`: when it is to say that it is not idle, by the time since the boot `boot` of a machine; another one
    cannot tell. `partitions`: those among which it has dealt its rows."""

    producer: int
    epoch: int = -1
    renew_at_us: int = 0
    numbers: dict[int, int] | None = None
    partitions: int = 0
    boot: bytes = b""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A task is to have this producer in the place of another one, 0 for none. The first of several claims counts."""

    task: int
    producer: int
    instead_of: int


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """`done`: the last batch that is stored as a whole, -1 for none, with its `rows`; `run`: who wrote this record.
    `ends`: rows of the batches behind it are not below, by partition."""

    run: str
    done: int
    rows: int
    version: int = 1
    ends: Places | None = None
    tasks: dict[int, TaskProducer] = {}
    claim: Claim | None = None


class JournalState(msgspec.Struct, frozen=True):
    """The state of a sink according to its newest records. `run` is "" before the first record."""

    run: str
    done: int
    rows: int
    ends: Places | None = None
    tasks: dict[int, TaskProducer] = {}


class Journal:
    """Of one application."""

    def __init__(self, server: SinkServer, stream: str, application: str) -> None:
        self._server = server
        self._name = TopicName(stream, topic_of(application))
        self._application = application

    def begin(self, run: str, first_ends: Callable[[JournalState], Places] | None = None) -> JournalState:
        """What is stored, once `run` is the one that writes. `first_ends`: where the partitions end, for a sink that
        stores rows once. `TakenOverError`."""
        state = state_of(self._newest(NEWEST))
        if state.run != run:
            records = self._newest(HISTORY)
            if any(each.run == run for each in records):
                raise self._taken_over()
            state = state_of(records)
            ends = state.ends if state.ends is not None or first_ends is None else first_ends(state)
            tasks = {} if first_ends is None else without_numbers(state.tasks)
            self._append(Record(run, state.done, state.rows, ends=ends, tasks=tasks))
            if first_ends is not None:
                self._server.flush(self._name, 0)  # rows may outlive a power loss; where they begin has to, too
            state = replace(state, ends=ends, tasks=tasks)
        return state

    def look(self, run: str, count: int = HISTORY) -> JournalState:
        """What its newest records say. `TakenOverError`."""
        state = state_of(self._newest(count))
        if state.run != run:
            raise self._taken_over()
        return state

    def claim(self, run: str, claim: Claim) -> JournalState:
        """Which producers the tasks have then; of several claims of a task the first one counts. `TakenOverError`."""
        state = self.look(run)
        self._append(Record(run, state.done, state.rows, claim=claim))
        self._server.flush(self._name, 0)
        return self.look(run)

    def finish(
        self,
        run: str,
        batch: int,
        rows: int,
        ends: Iterable[Places] = (),
        tasks: Mapping[int, TaskProducer] | None = None,
    ) -> None:
        """The batch is stored as a whole. `TakenOverError`."""
        state = self.look(run, NEWEST)
        if tasks is None:
            self._append(Record(run, batch, rows))
            return
        if state.ends is None:  # only claims among the newest
            state = self.look(run)
        together = {**state.tasks, **tasks}
        if sum(len(each.numbers or ()) for each in together.values()) > NUMBERS_MAX:
            together = without_numbers(together)
        self._append(Record(run, batch, rows, ends=later(state.ends or {}, ends), tasks=together))

    def rows_of(self, batch: int) -> int | None:
        """How many rows a batch had when it was stored; None when the journal does not tell any more."""
        return next((each.rows for each in self._newest(HISTORY) if each.done == batch), None)

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(
            f"another run of '{self._application}' writes now, this one was taken over: a query must run once; stop"
            " one of the two"
        )

    def _newest(self, count: int) -> list[Record]:
        request = poll_request(self._name, 0, PollingKind.LAST, 0, count)
        try:
            found = self._server.poll(request)
        except ShardError as error:
            if error.status not in NOT_FOUND:
                raise self._refused(error) from error
            return []
        return [msgspec.json.decode(each, type=Record) for each in found]

    def _append(self, record: Record) -> None:
        head = batch_head(self._name.stream, self._name.topic, 0)
        payload = encode_batch(head, [encode_record(msgspec.json.encode(record))])
        try:
            self._server.send(payload)
            return
        except ShardError as error:
            if error.status not in NOT_FOUND:
                raise self._refused(error) from error
        try:
            self._server.make_topic(self._name, 1)
            self._server.send(payload)
        except (ShardError, RightMissingError) as error:
            raise self._refused(error) from error

    def _refused(self, error: ShardError | RightMissingError) -> Exception:
        if not isinstance(error, RightMissingError) and error.status is not Status.UNAUTHORIZED:
            return error
        return JournalError(
            f"the user may not read, make or write the journal '{self._name}' of the sink: it needs the rights"
            " poll_messages and send_messages there, and manage_topics to make it (manage_streams for its stream); or"
            " give another stream with the option 'journal', or journal=none, which forgets what is stored"
        )


def state_of(records: list[Record]) -> JournalState:
    """`done` never falls: a run that began while another one ended may have written an older one."""
    if not records:
        return JournalState("", -1, 0)
    best = max(records, key=lambda each: each.done)
    ends: Places | None = None
    for each in records:
        if each.done == best.done and each.ends is not None:
            ends = each.ends if ends is None else _earlier(ends, each.ends)
    return JournalState(records[-1].run, best.done, best.rows, ends, _tasks_of(records))


def _tasks_of(records: list[Record]) -> dict[int, TaskProducer]:
    """Of the newest record that has them, and of the claims."""
    newest = next((each for each in reversed(records) if each.claim is None), None)
    tasks = {} if newest is None else dict(newest.tasks)
    if newest is not None and newest.run != records[-1].run:
        tasks = without_numbers(tasks)
    for each in records:
        claim = each.claim
        if claim is not None and claim.instead_of == (tasks[claim.task].producer if claim.task in tasks else 0):
            tasks[claim.task] = TaskProducer(claim.producer)
    return tasks


def without_numbers(tasks: Mapping[int, TaskProducer]) -> dict[int, TaskProducer]:
    """What another run may know of them."""
    return {task: TaskProducer(each.producer, each.epoch) for task, each in tasks.items()}


def _earlier(ends: Places, others: Places) -> Places:
    """In each partition the lower one: none of the tasks that begin together may miss rows of another one."""
    found = {}
    for partition in ends.keys() & others.keys():
        one, other = ends[partition], others[partition]
        found[partition] = min(one, other) if one[0] == other[0] else (_ANY_OTHER, 0)
    return found


def later(ends: Places, others: Iterable[Places]) -> Places:
    """In each partition the one behind all rows that were stored; of two incarnations the new one."""
    found = dict(ends)
    for places in others:
        for partition, place in places.items():
            known = found.get(partition, place)
            fresh = known[0] != place[0] and known == ends.get(partition)
            found[partition] = place if fresh else max(known, place)
    return found


def topic_of(application: str) -> str:
    """Names of topics have at most 255 bytes."""
    plain = len(application.encode()) <= _NAME_MAX and application.isprintable()
    return application if plain else f"sha256-{hashlib.sha256(application.encode()).hexdigest()}"
