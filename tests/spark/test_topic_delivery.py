"""Tasks of the sink as executors run them, without Spark: answers that are lost, workers that die, servers that stay
away, and two runs of one query."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from immutables import Map

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic import writers as sink
from shardd.spark.sinks.topic.journal import Journal, JournalError, Record, TakenOverError, state_of, topic_of
from shardd.spark.sinks.topic.options import SinkOptions
from shardd.spark.sinks.topic.rows import RowEncoder
from shardd.spark.sinks.topic.sender import FrameDeliveryError, Sender
from shardd.spark.sinks.topic.server import SinkServer, keep
from shardd.spark.sinks.topic.writers import RowsSent, StoredOtherwiseError, Work
from tests.spark.proxies import CuttingProxy
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server

ROWS = 3000


@pytest.fixture
def stream(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"d{abs(hash(request.node.name))}"
    yield name
    with wire.connect(server.address) as connection:
        if name in connection.streams():
            connection.delete_stream(name)


def options(address: str, stream: str, **more: str) -> SinkOptions:
    given = {"servers": address, "topic": f"{stream}/out", "createTopic": "2", "username": "iggy", "password": "iggy"}
    return topic_options.parse({**given, "batchBytes": "4 KiB", **more}, streaming=True)


def rows(first: int, count: int) -> Iterator[pa.RecordBatch]:
    for low in range(first, first + count, 500):
        numbers = range(low, min(low + 500, first + count))
        yield pa.RecordBatch.from_pydict(
            {"value": [str(n).encode() for n in numbers], "partition": pa.array([n % 2 for n in numbers], pa.int32())}
        )


def stored(server: Server, stream: str) -> list[wire.Message]:
    with wire.connect(server.address) as connection:
        return [each for partition in range(2) for each in connection.read_all(stream, "out", partition)]


def values(messages: list[wire.Message]) -> list[int]:
    return [int(each.payload) for each in messages]


def test_kept_connection_that_has_ended_is_made_again_to_its_own_server(server: Server, stream: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        given = options(f"127.0.0.1:{other.getsockname()[1]},{server.address}", stream)
        ended = given.servers.open(1, 10.0)
        ended.close()
        keep(given, ended)
        with closing(SinkServer(given)) as asked:
            assert asked.partitions() == 2
        other.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came to the first of the servers
            other.accept()


def test_rows_whose_answers_are_lost_come_again_with_the_same_ids(server: Server, stream: str) -> None:
    with CuttingProxy(server.address, every=3) as proxy:
        given = options(proxy.address, stream, semantics="stable-ids", order="source", journal="none")
        done = sink.write(given, Work("q", "r", 0), rows(0, ROWS))
    found = stored(server, stream)
    assert proxy.lost > 3 and done.rows == ROWS
    assert set(values(found)) == set(range(ROWS)) and len(found) > ROWS
    assert len({each.id for each in found}) == ROWS, "who knows the ids has each row once"
    assert len({(each.id, each.payload) for each in found}) == ROWS


def test_a_worker_that_dies_loses_no_row(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        given = options(server.address, "s", maxInFlight="8", journal="none")
        pids = server.worker_pids()

        def batches() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(rows(0, 40_000)):
                if number == 20:
                    os.kill(pids[-1], signal.SIGKILL)
                yield batch

        done = sink.write(given, Work("q", "r", 0), batches())
        assert done.rows == 40_000
        assert set(values(stored(server, "s"))) == set(range(40_000))


def send(given: SinkOptions, batches: Iterator[pa.RecordBatch]) -> None:
    encoder = RowEncoder(given, 2, None, 0)
    with Sender(given) as sender:
        for batch in batches:
            for frame in encoder.frames(batch):
                sender.send(frame)
        sender.flush()


def test_a_server_that_stays_away_ends_the_task_in_its_time(server: Server, stream: str) -> None:
    given = options(f"127.0.0.1:{free_port()}", stream, deliveryTimeoutMs="800")
    with pytest.raises(FrameDeliveryError, match=r"within 0\.8 s"):
        send(given, rows(0, 500))


def test_a_refusal_is_told_at_once(server: Server, stream: str) -> None:
    with pytest.raises(FrameDeliveryError, match="stream_id_not_found"):
        send(options(server.address, stream), rows(0, 10))


# ---- the journal ----


def test_a_journal_without_rights_is_one_sentence(server: Server, stream: str) -> None:
    """The user may send to the topic and make nothing; without a journal it can write."""
    sink.write(options(server.address, stream, journal="none"), Work("q", "r", 0), rows(0, 10))
    with wire.connect(server.address) as connection:
        number = connection.streams()[stream]
        topics = Map({0: TopicPermissions(send_messages=True, poll_messages=True, read_topic=True)})
        rights = Permissions(streams=Map({number: StreamPermissions(topics=topics)}))
        user = account_requests.CreateUserRequest(f"writer-{stream}"[:40], "secret", 1, rights)
        connection.request(Code.CREATE_USER, user.encode())
    who = {"username": user.username, "password": "secret"}
    with pytest.raises(JournalError, match="journal=none"):
        sink.write(options(server.address, stream, **who), Work("query", "run", 0), rows(10, 10))
    sink.write(options(server.address, stream, journal="none", **who), Work("query", "run", 0), rows(10, 10))
    assert sorted(values(stored(server, stream))) == list(range(20))


def finish(given: SinkOptions, batch: int, *tasks: RowsSent) -> None:
    sink.commit(given, list(tasks), batch)


def test_of_two_runs_of_a_query_the_later_one_wins(server: Server, stream: str) -> None:
    given, query = options(server.address, stream), f"query {stream}"
    finish(given, 0, sink.write(given, Work(query, "first", 0), rows(0, 10)))
    half_done = sink.write(given, Work(query, "first", 1), rows(10, 10))
    done = sink.write(given, Work(query, "second", 1), rows(10, 10))
    for late in (lambda: finish(given, 1, half_done), lambda: sink.write(given, Work(query, "first", 1), rows(10, 10))):
        with pytest.raises(TakenOverError, match="a query must run once"):
            late()
    finish(given, 1, done)
    finish(given, 2, sink.write(given, Work(query, "second", 2), rows(20, 10)))
    with pytest.raises(TakenOverError):
        sink.write(given, Work(query, "first", 2), rows(20, 10))
    assert sorted(set(values(stored(server, stream)))) == list(range(30))


def test_a_batch_that_is_stored_is_not_sent_again(server: Server, stream: str) -> None:
    given, query = options(server.address, stream), f"query {stream}"
    for batch in range(3):
        tasks = [sink.write(given, Work(query, "one", batch), rows(20 * batch + low, 10)) for low in (0, 10)]
        finish(given, batch, *tasks)
    for batch in (1, 2):
        again = [sink.write(given, Work(query, f"run {batch}", batch), rows(20 * batch + low, 10)) for low in (0, 10)]
        assert all(each.stored_before for each in again)
        finish(given, batch, *again)
    with pytest.raises(StoredOtherwiseError, match="with 20 rows, this time it has 19"):
        finish(given, 2, sink.write(given, Work(query, "three", 2), rows(40, 19)))
    assert sorted(values(stored(server, stream))) == list(range(60))
    assert len(stored(server, stream)) == 60


def test_a_batch_that_the_journal_does_not_know_any_more_is_told(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, query = options(server.address, stream), f"query {stream}"
    monkeypatch.setattr("shardd.spark.sinks.topic.journal.HISTORY", 3)
    for batch in range(8):
        finish(given, batch, sink.write(given, Work(query, "one", batch), rows(batch, 1)))
    with pytest.raises(StoredOtherwiseError, match="an unknown number of rows"):
        finish(given, 1, sink.write(given, Work(query, "two", 1), rows(1, 1)))


def test_what_is_done_never_falls() -> None:
    """A run that began while another one finished a batch has written an older state behind it."""
    assert state_of([]).done == -1
    late = [Record("a", 6, 5), Record("a", 7, 9), Record("b", 6, 5)]
    assert (state_of(late).run, state_of(late).done, state_of(late).rows) == ("b", 7, 9)


def test_applications_have_topics_of_their_own(server: Server, stream: str) -> None:
    names = ["a", "a b", "ä" * 300, "x" * 300, "x" * 301, "line\nbreak"]
    assert len({topic_of(each) for each in names}) == len(names)
    given = options(server.address, stream)
    asked = SinkServer(given)
    try:
        for each in names:
            journal = Journal(asked, stream, each)
            assert journal.begin("one").done == -1
            journal.finish("one", 4, 2)
            assert journal.begin("two").done == 4 and journal.rows_of(4) == 2
    finally:
        asked.close()
