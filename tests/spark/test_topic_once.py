"""semantics=idempotent, as executors run it, without Spark: attempts that end anywhere, that are repeated beside each
other, runs that take over, producers that the server has forgotten. Whatever happens, each row is stored once."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardd.client import Connection, Credentials
from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.spark.positions import OptionError
from shardd.spark.sinks.topic import once as topic_once
from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic import stored as topic_stored
from shardd.spark.sinks.topic import writers as sink
from shardd.spark.sinks.topic.buffers import RowError
from shardd.spark.sinks.topic.journal import Claim, Journal, JournalState, TakenOverError, TaskProducer
from shardd.spark.sinks.topic.sender import FrameDeliveryError
from shardd.spark.sinks.topic.server import NoProducersError
from shardd.spark.sinks.topic.stored import StoredRows, UnprovableError
from shardd.spark.sinks.topic.writers import JournalGoneError, RowsSent, Work
from tests.spark import once_query
from tests.spark.once_query import DiedError, Query, rows_of, stored
from tests.spark.proxies import CuttingProxy, StockProxy
from tests.spark.support import DELETE_SEGMENTS
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server


@pytest.fixture
def stream(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"o{abs(hash(request.node.name))}"
    yield name
    with wire.connect(server.address) as connection:
        if name in connection.streams():
            connection.delete_stream(name)


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch, server: Server, stream: str) -> Query:
    return Query(monkeypatch, server.address, stream)


# ---- one run ----


@pytest.mark.parametrize("at", [1, 4, 7])
def test_an_attempt_that_died_is_repeated(query: Query, server: Server, stream: str, at: int) -> None:
    """In the first batch, where a new epoch looks for what is stored, and in a later one, where numbers tell it."""
    for batch in range(3):
        query.die("one", batch, 0, at=at)
        query.die("one", batch, 1, at=8 - at)
        query.run("one", batch)
    assert stored(server, stream) == rows_of(3)


def test_a_run_stays_in_its_epoch(query: Query) -> None:
    made = []
    for batch in range(4):
        done = query.attempt("one", batch)
        assert done.once is not None and done.once.producer is not None
        made.append(done.once.producer)
        query.commit(batch, done)
    assert len({(each.producer, each.epoch) for each in made}) == 1
    assert made[-1].numbers is not None and made[0].numbers is not None
    assert sum(made[-1].numbers.values()) == 4 * sum(made[0].numbers.values())


def test_attempts_beside_each_other_store_once(query: Query, server: Server, stream: str) -> None:
    """A speculative attempt that ends first, in the first batch (new epochs) and in later ones (the same numbers)."""
    for batch in range(3):
        done: list[RowsSent] = []

        def beside(batch: int = batch, done: list[RowsSent] = done) -> None:
            done.append(query.attempt("one", batch))

        first = query.attempt("one", batch, at=3, does=beside)
        query.commit(batch, done[0] if batch % 2 else first)
    assert stored(server, stream) == rows_of(3, 1)


def test_a_task_may_have_nothing_and_new_tasks_may_come(query: Query, server: Server, stream: str) -> None:
    query.run("one", 0, tasks=1)
    query.run("one", 1, tasks=3)
    query.die("one", 2, 2, at=5)
    query.run("one", 2, tasks=3)
    empty = sink.write(query.options, Work(query.name, "one", 3), iter(()))
    assert empty.once is not None and empty.once.producer is None
    query.commit(3, empty)
    query.run("one", 4, tasks=3)
    wanted = [n for n in rows_of(5, 3) if (n // 10_000, n // 1000 % 10) not in ((0, 1), (0, 2), (3, 0), (3, 1), (3, 2))]
    assert stored(server, stream) == wanted


def test_partitions_that_come_in_the_middle(query: Query, server: Server, stream: str) -> None:
    """Keys go elsewhere from then on, so numbers tell nothing of the rows of an earlier attempt."""
    query.run("one", 0)
    query.die("one", 1, 0, at=6)
    with wire.connect(server.address) as connection:
        address = wire.identifier(stream) + wire.identifier("out")
        connection.request(Code.CREATE_PARTITIONS, address + (2).to_bytes(4, "little"))
    query.run("one", 1)
    query.die("one", 2, 1, at=6)
    query.run("one", 2)
    assert stored(server, stream) == rows_of(3)


def test_a_journal_that_has_lost_its_end(
    monkeypatch: pytest.MonkeyPatch, query: Query, server: Server, stream: str
) -> None:
    """As after a power loss: the numbers of a record before are those of other rows."""
    query.run("one", 0)
    monkeypatch.setattr(Journal, "finish", lambda *_: None)
    query.run("one", 1)
    monkeypatch.undo()
    again = Query(monkeypatch, server.address, stream)
    again.run("one", 2)
    assert stored(server, stream) == rows_of(3)


# ---- rows that are other ones in the next attempt ----


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("gone", [50, 100])
def test_rows_that_take_the_positions_of_lost_ones_are_not_left_out(
    query: Query, server: Server, stream: str, batch: int, gone: int
) -> None:
    """Retention deletes rows of the source between two attempts, so those behind them move up. Numbers tell it (in the
    second batch), or the messages that are stored under the ids of the positions (in the first one)."""
    if batch:
        query.run("one", 0, tasks=1)
    query.die("one", batch, 0, at=4)
    before = stored(server, stream)
    query.gone = gone
    with pytest.raises(UnprovableError, match="an attempt before has stored other rows"):
        query.attempt("one", batch)
    with pytest.raises(UnprovableError, match="an attempt before has stored other rows"):  # nor is it believed later
        query.attempt("one", batch)
    assert stored(server, stream) == before
    query.gone = 0  # the rows are back: nothing was spoilt
    query.run("one", batch, tasks=1)
    assert stored(server, stream) == rows_of(batch + 1, 1)


@pytest.mark.parametrize("batch", [0, 1])
def test_rows_with_ids_of_their_own_are_stored_whatever_their_number(
    query: Query, server: Server, stream: str, batch: int
) -> None:
    query.id_of = lambda n: (n + 1).to_bytes(16, "big")
    if batch:
        query.run("one", 0, tasks=1)
    query.die("one", batch, 0, at=4)
    query.gone = 100
    query.commit(batch, query.attempt("one", batch))
    found = stored(server, stream)
    assert len(set(found)) == len(found)
    assert set(rows_of(batch + 1, 1)) - set(found) <= set(range(10_000 * batch, 10_000 * batch + 100))


def test_a_repeated_attempt_behind_the_window_of_the_server_sends_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, server: Server, stream: str
) -> None:
    """The server does not know any more what the first of more than 40 batches in a partition have stored."""
    monkeypatch.setattr(once_query, "ROWS", 800)
    query = Query(monkeypatch, server.address, stream, batchBytes="1 KiB", createTopic="1")
    query.run("one", 0, tasks=1)
    query.attempt("one", 1)
    done = query.attempt("one", 1)
    query.commit(1, done)
    assert done.once is not None and done.once.producer is not None and done.once.producer.epoch == 1
    assert stored(server, stream) == rows_of(2, 1)


# ---- several runs ----


@pytest.mark.parametrize("single", [False, True])
def test_a_later_run_finds_what_is_stored(query: Query, server: Server, stream: str, single: bool) -> None:
    query.single = single
    for batch in range(4):
        query.die(f"run {batch}", batch, 0, at=5)
        query.attempt(f"run {batch}", batch, 1)
        if batch == 2:
            query.die(f"run {batch}, again", batch, 0, at=7)
            query.die(f"run {batch}, again", batch, 0, at=6)
        query.run(f"run {batch}, last", batch)
    assert stored(server, stream) == rows_of(4)


def test_a_run_that_was_taken_over_is_told_and_stores_nothing(query: Query, server: Server, stream: str) -> None:
    """Its task is in the middle when another run does the batch."""
    query.run("first", 0)
    with pytest.raises(TakenOverError, match="a query must run once"):
        query.attempt("first", 1, 0, at=4, does=lambda: query.run("second", 1))
    query.run("second", 2)
    with pytest.raises(TakenOverError):
        query.attempt("first", 2, 0)
    assert stored(server, stream) == rows_of(3)


def test_a_stored_batch_is_not_sent_again(query: Query, server: Server, stream: str) -> None:
    query.run("one", 0)
    query.run("two", 0)
    query.run("two", 1)
    assert stored(server, stream) == rows_of(2)


def test_ids_of_the_rows_may_be_there_more_than_once(
    monkeypatch: pytest.MonkeyPatch, server: Server, stream: str
) -> None:
    """As `copy` has it: partitions and ids are those of the source, which may have a message twice."""
    query = Query(monkeypatch, server.address, stream)
    query.id_of = lambda n: bytes(8) + (n % 1000 // 3 + 1).to_bytes(8, "big")
    query.die("one", 0, 0, at=5)
    query.die("one", 0, 1, at=3)
    query.run("two", 0)
    query.die("two", 1, 0, at=4)
    query.run("three", 1)
    assert stored(server, stream) == rows_of(2)


# ---- the server ----


def test_lost_answers_and_short_cuts(monkeypatch: pytest.MonkeyPatch, server: Server, stream: str) -> None:
    with CuttingProxy(server.address, every=5) as proxy:
        query = Query(monkeypatch, proxy.address, stream, maxInFlight="3")
        for batch in range(3):
            query.run(f"run {batch // 2}", batch)
        assert proxy.lost > 5
    assert stored(server, stream) == rows_of(3)


def test_killed_workers_and_a_killed_shard_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        query = Query(monkeypatch, server.address, "s", maxInFlight="8")
        query.run("one", 0)
        for batch, worker in ((1, -1), (2, 0), (3, -1)):
            kill = lambda worker=worker: os.kill(server.worker_pids()[worker], signal.SIGKILL)  # noqa: E731
            done = [query.attempt("one" if batch < 3 else "two", batch, 0, at=4, does=kill)]
            query.commit(batch, *done, query.attempt("one" if batch < 3 else "two", batch, 1))
        assert stored(server, "s") == rows_of(4)


def test_a_producer_that_the_partitions_have_forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As after a power loss, in the middle of a batch: a new epoch goes on behind what is stored."""
    server = Server(tmp_path / "data", env={"SHARDD_TCP_ADDRESS": f"127.0.0.1:{free_port()}"})
    server.start()
    query = Query(monkeypatch, server.address, "s")

    def forget() -> None:
        server.kill_supervisor()
        for each in (tmp_path / "data").rglob("producers"):
            each.unlink()
        server.start()

    try:
        query.run("one", 0)
        done = query.attempt("one", 1, 0, at=5, does=forget)
        assert done.once is not None and done.once.producer is not None and done.once.producer.epoch == 1
        query.commit(1, done, query.attempt("one", 1, 1))
        query.run("one", 2)
        assert stored(server, "s") == rows_of(3)
    finally:
        server.stop()


def test_what_is_not_possible_is_one_sentence(monkeypatch: pytest.MonkeyPatch, server: Server, stream: str) -> None:
    query = Query(monkeypatch, server.address, stream)
    with pytest.raises(JournalGoneError, match="has no journal"):
        query.run("one", 3)
    with pytest.raises(RowError, match="more than 512 tasks"):
        query.attempt("one", 0, 512)
    with StockProxy(server.address) as proxy, pytest.raises(NoProducersError, match="no idempotent producers"):
        Query(monkeypatch, proxy.address, stream).run("one", 0)
    large = pa.RecordBatch.from_pydict({"value": [b"x" * (2 << 20)]})
    with pytest.raises(RowError, match="more than 2 MiB"):
        sink.write(query.options, Work(query.name, "two", 0), iter([large]))
    with pytest.raises(OptionError, match="needs the journal"):
        Query(monkeypatch, server.address, stream, journal="none")
    set_level(server.address, stream, "memory")
    with pytest.raises(FrameDeliveryError, match="has the level memory"):
        query.run("three", 0)


def set_level(address: str, stream: str, level: str) -> None:
    with Connection(address, Credentials("iggy", "iggy")) as connection:
        connection.set_topic_settings(SetTopicSettings(stream, "out", (("ack", level),)))


def test_a_durable_topic(query: Query, server: Server, stream: str) -> None:
    """Polls see only what is on the device; a new epoch waits for the rest."""
    query.run("one", 0)
    set_level(server.address, stream, "durable")
    query.die("one", 1, 0, at=6)
    query.run("two", 1)
    assert stored(server, stream) == rows_of(2)


def test_messages_that_were_deleted_are_told(query: Query, server: Server, stream: str) -> None:
    """What retention has removed since the last batch may have been rows of this one."""
    query.run("one", 0)
    query.die("one", 1, 0, at=7)
    with wire.connect(server.address) as connection:
        for _ in range(4):
            connection.send(stream, "out", wire.to_partition(0), [wire.message(b"f" * 4000) for _ in range(10)])
        address = wire.identifier(stream) + wire.identifier("out")
        connection.request(DELETE_SEGMENTS, address + bytes(4) + (1).to_bytes(4, "little"))
    with pytest.raises(UnprovableError, match="were deleted since the last batch"):
        query.run("two", 1)
    query.options = replace(query.options, semantics=topic_options.Semantics.STABLE_IDS)
    query.run("three", 1)


def test_a_producer_of_somebody_else_is_replaced(monkeypatch: pytest.MonkeyPatch, server: Server, stream: str) -> None:
    """So is one that the server has forgotten: both are status 20."""
    query = Query(monkeypatch, server.address, stream)
    query.run("one", 0)
    query.die("one", 1, 0, at=5)
    with wire.connect(server.address) as connection:
        everything = Permissions(manage_streams=True, manage_topics=True, poll_messages=True, send_messages=True)
        user = account_requests.CreateUserRequest(f"other-{stream}"[:40], "secret", 1, everything)
        connection.request(Code.CREATE_USER, user.encode())
    other = Query(monkeypatch, server.address, stream, username=user.username, password="secret")
    other.run("two", 1)
    other.run("two", 2)
    assert stored(server, stream) == rows_of(3)


# ---- random histories ----


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_store_each_row_once(query: Query, server: Server, stream: str, seed: int) -> None:
    history(query, random.Random(seed))
    assert stored(server, stream) == rows_of(6)


def history(query: Query, chance: random.Random) -> None:
    """Attempts that die, runs that begin in the middle of others, also nested."""
    run = 0
    for batch in range(6):
        for _ in range(chance.randrange(4)):
            run += chance.random() < 0.5
            attempt_somehow(query, f"run {run}", batch, chance)
        run += chance.random() < 0.3
        query.run(f"run {run}", batch)


def attempt_somehow(query: Query, run: str, batch: int, chance: random.Random, depth: int = 0) -> None:
    inside = depth < 2 and chance.random() < 0.5
    does = None
    if inside:
        does = lambda: attempt_somehow(query, run, batch, chance, depth + 1)  # noqa: E731
    try:
        query.attempt(run, batch, chance.randrange(2), at=chance.randrange(8), does=does)
    except (DiedError, FrameDeliveryError, TakenOverError):
        return


def test_the_histories_find_planted_faults(
    monkeypatch: pytest.MonkeyPatch, query: Query, server: Server, stream: str
) -> None:
    """A new epoch that does not look for what is stored."""
    monkeypatch.setattr(topic_once, "find", lambda *_: (StoredRows({}), topic_stored.find(*_)[1]))
    history(query, random.Random(3))
    assert stored(server, stream) != rows_of(6)


def test_the_histories_find_producers_that_are_not_agreed(
    monkeypatch: pytest.MonkeyPatch, query: Query, server: Server, stream: str
) -> None:
    """Attempts beside each other do not end each other's epochs."""
    claim = Journal.claim

    def own(self: Journal, run: str, wanted: Claim) -> JournalState:
        state = claim(self, run, wanted)
        return replace(state, tasks={**state.tasks, wanted.task: TaskProducer(wanted.producer)})

    monkeypatch.setattr(Journal, "claim", own)
    monkeypatch.setattr(Journal, "look", lambda self, run, count=1000: replace(look(self, run, count), tasks={}))
    query.attempt("one", 0, at=3, does=partial(query.attempt, "one", 0))
    assert stored(server, stream) != rows_of(1, 1)


look = Journal.look
