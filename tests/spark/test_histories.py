"""What was planned is what is read, whatever happens to the topic meanwhile: the source's classes on a real server."""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from shardd.log.incarnation import write_incarnation
from shardd.spark import planner
from shardd.spark.loss import DataLossError
from shardd.spark.options import parse
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.archive import Target
from shardd.spark.source import ShardReader, make_server
from tests.spark.direct import Row, Stream, batch, everything, rows
from tests.spark.proxies import StockProxy
from tests.spark.support import Topic, delete_sealed, settle, source_of
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server


def purge(topic: Topic) -> None:
    topic.connection.purge_topic(topic.stream, topic.topic)
    topic.payloads.clear()


def recreate(topic: Topic) -> None:
    address = wire.identifier(topic.stream) + wire.identifier(topic.topic)
    topic.connection.request(303, address)
    topic.connection.create_topic(topic.stream, topic.topic, 2)
    topic.payloads.clear()


def refill(topic: Topic) -> None:
    for partition in range(2):
        topic.send(partition, 3000)
    settle(topic)


def options_of(topic: Topic, mode: str, **more: str) -> dict[str, str]:
    path = {} if mode == "live" else {"path": str(topic.server.data_dir)}
    return topic.options(readMode=mode, **path, **more)


# ---- one history ----


@pytest.mark.parametrize("change", [purge, recreate])
@pytest.mark.parametrize("mode", ["live", "cold", "auto"])
def test_a_plan_reads_its_own_history_or_nothing(topic: Topic, mode: str, change: Callable[[Topic], None]) -> None:
    reader = batch(options_of(topic, mode))
    lenient = batch(options_of(topic, mode, failOnDataLoss="false"))
    tasks, lenient_tasks = reader.partitions(), lenient.partitions()
    change(topic)
    refill(topic)
    with pytest.raises(DataLossError, match=r"purged, made anew or restored|belongs to another incarnation"):
        rows(reader, tasks)
    assert rows(lenient, lenient_tasks) == []


def test_the_first_row_already_is_proven(topic: Topic) -> None:
    """Spark may take a few rows and leave the rest: nothing can be taken back then."""
    reader = batch(options_of(topic, "live"))
    tasks = reader.partitions()
    purge(topic)
    refill(topic)
    with pytest.raises(DataLossError):
        next(iter(reader.read(tasks[0])))


def test_a_purge_between_two_polls_ends_the_read(topic: Topic) -> None:
    reader = batch(options_of(topic, "live", **{"poll.maxBytes": "16 KiB"}))
    before = topic.rows()
    found = reader.read(reader.partitions()[0])
    part = next(found)
    head = set(zip(*(part.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True))
    assert head <= before
    purge(topic)
    refill(topic)
    with pytest.raises(DataLossError):
        list(found)


def test_an_archive_job_writes_its_own_history_or_nothing(topic: Topic, tmp_path: Path) -> None:
    target = Target.parse(f"parquet:{tmp_path}", {})
    jobs, _ = archive.plan(source_of(topic), target)
    purge(topic)
    refill(topic)
    with pytest.raises(DataLossError):
        jobs[0].run()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_topic_that_is_gone_is_data_loss(topic: Topic) -> None:
    reader, lenient = batch(topic.options()), batch(topic.options(failOnDataLoss="false"))
    tasks, lenient_tasks = reader.partitions(), lenient.partitions()
    topic.connection.request(303, wire.identifier(topic.stream) + wire.identifier(topic.topic))
    with pytest.raises(DataLossError, match="does not exist any more"):
        rows(reader, tasks)
    assert rows(lenient, lenient_tasks) == []


def test_a_stock_server_tells_a_topic_that_was_made_anew(topic: Topic) -> None:
    with StockProxy(topic.server.address) as stock:
        reader = batch({**topic.options(), "servers": stock.address})
        tasks = reader.partitions()
        recreate(topic)
        refill(topic)
        with pytest.raises(DataLossError):
            rows(reader, tasks)


# ---- accepted losses ----


@pytest.mark.parametrize("change", [purge, recreate])
def test_a_batch_of_a_new_history_ends_where_it_was_planned(topic: Topic, change: Callable[[Topic], None]) -> None:
    stream = Stream(topic.options(startingOffsets="earliest", failOnDataLoss="false"))
    assert set(stream.run()) == topic.rows()
    change(topic)
    refill(topic)
    found: list[Row] = []
    tasks, end = stream.plan(ReadMaxRows(1000))
    topic.send(0, 100)
    settle(topic)
    found += rows(stream.reader, tasks)
    assert len(found) == 1000, "beyond the limit, or beyond the end of the batch"
    stream.at = end
    while part := stream.run(ReadMaxRows(1000)):
        assert len(part) <= 1002
        found += part
    assert len(found) == len(set(found)) and set(found) == topic.rows()


def test_a_batch_of_a_history_that_is_gone_is_empty_and_the_next_one_is_whole(topic: Topic) -> None:
    """The purge comes when the batch is in the checkpoint already."""
    stream = Stream(topic.options(startingOffsets="earliest", failOnDataLoss="false"))
    _, end = stream.plan()
    purge(topic)
    refill(topic)
    assert stream.at is not None
    assert rows(stream.reader, stream.reader.partitions(stream.at, end)) == []
    stream.at = end
    assert set(stream.run()) == topic.rows()
    assert stream.lost() == {topic.name: {"0": 3000, "1": 3000}}


@pytest.mark.parametrize("mode", ["live", "cold", "auto"])
def test_what_is_kept_is_read_when_the_rest_was_deleted(
    topic: Topic, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = batch(options_of(topic, mode, failOnDataLoss="false"))
    tasks = reader.partitions()
    planned = set(everything(options_of(topic, mode)))
    delete_sealed(topic, 0)
    first = topic.bounds()[0].first
    assert first > 0
    caplog.clear()
    found = rows(reader, tasks)
    assert len(found) == len(set(found)) and set(found) == {row for row in planned if row[0] == 1 or row[1] >= first}
    lost = len(planned) - len(found)
    said = re.findall(r"accepted \(failOnDataLoss=false\), (\d+) messages", caplog.text)
    assert lost > 0 and sum(map(int, said)) == lost, "every message that is missing is counted, and no other"


def test_what_was_deleted_before_a_batch_stands_in_the_progress(topic: Topic) -> None:
    stream = Stream(topic.options(startingOffsets="earliest", failOnDataLoss="false"))
    stream.reader.initialOffset()
    stream.at = {"v": 1, "topics": {topic.name: {"p": {}, "stride": 0}}}
    incarnations = {each.id: each.incarnation for each in topic.bounds()}
    stream.at["topics"][topic.name]["p"] = {str(n): [number, 10] for n, number in incarnations.items()}
    delete_sealed(topic, 0)
    first = topic.bounds()[0].first
    found = stream.run()
    assert {n for p, n, _ in found if p == 0} == set(range(first, 3000))
    assert stream.lost() == {topic.name: {"0": first - 10}}


def test_cold_reads_lose_nothing_that_only_this_machine_does_not_have(topic: Topic, tmp_path: Path) -> None:
    reader = batch(topic.options(readMode="cold", path=str(tmp_path), failOnDataLoss="false"))
    with pytest.raises(DataLossError, match="but not this machine"):
        rows(reader, reader.partitions())


@pytest.mark.parametrize("mode", ["auto", "cold"])
def test_a_directory_of_another_history_costs_no_row_that_the_server_has(
    topic: Topic, tmp_path: Path, mode: str
) -> None:
    """The directory of a server before a restore, for instance."""
    stale = tmp_path / "stale"
    shutil.copytree(topic.server.data_dir, stale, ignore=shutil.ignore_patterns("trash", "*.tmp"))
    for marker in stale.rglob("partitions/*/incarnation"):
        write_incarnation(marker.parent, 1 << 40)
    reader = batch(topic.options(readMode=mode, path=str(stale), failOnDataLoss="false"))
    expected = batch(topic.options(readMode="live"))
    if mode == "auto":
        assert rows(reader, reader.partitions()) == rows(expected, expected.partitions())
    else:
        with pytest.raises(DataLossError, match="but not this machine"):
            rows(reader, reader.partitions())


# ---- times ----


def times_of(topic: Topic) -> dict[tuple[int, int], int]:
    """Append times in microseconds by (partition, offset)."""
    found: dict[tuple[int, int], int] = {}
    reader = ShardReader(parse(topic.options(), streaming=False), ("partition", "offset", "timestamp"))
    for task in reader.partitions():
        for part in reader.read(task):
            partitions, offsets = (part.column(name).to_pylist() for name in ("partition", "offset"))
            times = part.column("timestamp").cast("int64").to_pylist()
            found |= dict(zip(zip(partitions, offsets, strict=True), times, strict=True))
    return found


def test_times_are_found_in_the_archive_too(topic: Topic, tmp_path: Path) -> None:
    """Every message is in the archive, the server has the newest segments only."""
    path = str(topic.server.data_dir)
    jobs, _ = archive.plan(
        source_of(topic, maxRecordsPerPartition="700", path=path), Target.parse(f"parquet:{tmp_path}", {})
    )
    for job in jobs:
        job.run()
    times = times_of(topic)
    for partition in range(2):
        delete_sealed(topic, partition)
    start_ms, end_ms = times[0, 1000] // 1000, times[0, 2000] // 1000
    options = topic.options(archivePath=str(tmp_path), startingTimestamp=str(start_ms), path=path)
    late = {row for row in topic.rows() if times[row[:2]] >= start_ms * 1000}
    assert len(late) > 2 * 1000 and set(everything(options)) == late
    both = set(everything({**options, "endingTimestamp": str(end_ms)}))
    assert both == {row for row in late if times[row[:2]] < end_ms * 1000}


# ---- restarts ----


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Topic]:
    """A server that may be stopped and started again, on one port; nothing is synced but by a stop."""
    env = {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{free_port()}", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "1 h"}
    with Server(tmp_path / "data", env=env) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("own"), "rows", 2)
        made = Topic(server, "own", connection)
        for partition in range(2):
            made.send(partition, 3000)
        yield made


def test_an_orderly_restart_costs_no_row_and_no_query(own: Topic) -> None:
    """Nothing is synced in the background here, and a read of what is visible asks for no sync: the durable end is the
    one that the stop left behind. The read is on the way when the server stops, over a connection that it has kept."""
    visible = batch(
        own.options(isolation="visible", **{"poll.maxBytes": "16 KiB", "fetchOffset.retryIntervalMs": "100"})
    )
    tasks = visible.partitions()
    reading = visible.read(tasks[0])
    found = [next(reading)]
    own.server.stop()
    restart = threading.Timer(1.0, own.server.start)
    restart.start()
    found += reading  # a second without a server, then its start
    restart.join()
    offsets = [
        (p, n)
        for each in found
        for p, n in zip(*(each.column(c).to_pylist() for c in ("partition", "offset")), strict=True)
    ]
    assert offsets == sorted((p, n) for p, n, _ in own.rows()), "none lost, none doubled"
    assert set(everything(own.options())) == own.rows(), "the first plan after the restart sees all that was synced"


def test_a_read_gives_up_when_its_attempts_are_used(own: Topic) -> None:
    reader = batch(
        own.options(isolation="visible", **{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "50"})
    )
    tasks = reader.partitions()
    own.server.stop()
    began_s = time.monotonic()
    with pytest.raises(ConnectionError, match="answers after 3 attempts"):
        rows(reader, tasks)
    assert time.monotonic() - began_s >= 0.15, "50 and 100 ms of pauses"


# ---- names and many partitions ----


def test_a_stream_with_a_slash_in_its_name_breaks_nobody(topic: Topic) -> None:
    connection = topic.connection
    connection.create_topic(connection.create_stream("ten/ant"), "ro,ws", 1)
    try:
        odd = Topic(topic.server, "ten/ant", connection, topic="ro,ws")
        odd.send(0, 10)
        settle(odd)
        everybody = {key: value for key, value in topic.options().items() if key != "subscribe"}
        stream = Stream({**everybody, "subscribePattern": ".*", "startingOffsets": "earliest"})
        found = stream.run()
        assert topic.rows() <= set(found) and odd.rows() <= set(found)
        odd.send(0, 5)
        settle(odd)
        assert [n for _, n, _ in stream.run()] == list(range(10, 15)), "the checkpoint is read back"
        assert set(everything({**everybody, "subscribe": "`ten/ant`/`ro,ws`"})) == odd.rows()
        assert set(everything({**everybody, "assign": json.dumps({"`ten/ant`/ro,ws": [0]})})) == odd.rows()
    finally:
        connection.delete_stream("ten/ant")


def test_a_topic_that_is_deleted_while_a_pattern_is_looked_up_breaks_nobody(topic: Topic) -> None:
    everybody = {key: value for key, value in topic.options().items() if key != "subscribe"}
    parsed = parse({**everybody, "subscribePattern": f"{topic.stream}/.*"}, streaming=False)
    server = make_server(parsed)
    topics_of = server._topics_of
    server._topics_of = lambda stream: [*topics_of(stream), "gone"]  # type: ignore[method-assign]
    assert [str(name) for name in planner.discover(server, parsed)] == [topic.name]


def test_a_thousand_small_partitions_are_a_few_tasks(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("many"), "rows", 1000)
        try:
            many = Topic(server, "many", connection)
            for partition in range(1000):
                many.send(partition, 2)
            settle(many)
            reader = batch(many.options())
            tasks = reader.partitions()
            assert len(tasks) == 8, "128 pieces at most share a task"
            found = rows(reader, tasks)
            assert len(found) == 2000 and set(found) == many.rows()
            assert len(batch(many.options(minBytesPerPartition="0")).partitions()) == 1000
            assert len(batch(many.options(minPartitions="40")).partitions()) >= 40
        finally:
            connection.delete_stream("many")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
