"""Leases of files: a plan of sealed segments is read to its end though retention has removed its messages meanwhile;
and what happens when there is no lease, or none any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from shardd.client import commands
from shardd.spark import leases
from shardd.spark.loss import DataLossError
from shardd.spark.options import parse
from shardd.spark.positions import OptionError
from shardd.spark.reading import SlicePartition, TaskSettings
from shardd.spark.source import ShardReader
from tests.spark import direct
from tests.spark.proxies import StockProxy
from tests.spark.support import DEADLINE_S, Topic
from tests.support.links import root_link
from tests.support.server import Server

ENV = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "64 KiB",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
    "IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED": "true",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("leases") / "data", env=ENV) as running:
        yield running


def cold(topic: Topic, **more: str) -> dict[str, str]:
    return topic.options(readMode="cold", path=str(topic.server.data_dir), minBytesPerPartition="0", **more)


def retain_few(topic: Topic) -> None:
    """Of all messages the last ten are to be served."""
    with root_link(topic.server.address) as connection:
        settings = (("partition_messages_max", "10"), ("retention", "on"))
        connection.call(commands.set_topic_settings(topic.stream, topic.topic, dict(settings)))


def keep_few(topic: Topic) -> None:
    """Of all messages the last ten are served from now on."""
    retain_few(topic)
    wait(lambda: all(each.first >= 2990 for each in topic.bounds(segments=False)), "retention removes nothing")


def files(topic: Topic) -> list[Path]:
    return [each for each in topic.server.data_dir.glob("streams/**/*.log") if each.stat().st_size > 0]


def wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def sealed(topic: Topic) -> set[direct.Row]:
    ends = {each.id: max(one.end for one in each.segments if one.sealed) for each in topic.bounds()}
    return {(p, n, each) for p, end in ends.items() for n, each in enumerate(topic.payloads[p][:end])}


def test_a_plan_is_read_to_its_end(topic: Topic) -> None:
    """The messages are not served any more, but the files are there until the lease ends."""
    wanted = sealed(topic)
    reader = direct.batch(cold(topic, lease="8s"))
    tasks = reader.partitions()
    keep_few(topic)
    time.sleep(2.5)  # what was acknowledged within the last second would stay anyway
    assert set(direct.rows(reader, tasks)) == wanted
    wait(lambda: not any("/00000000000000000000." in str(each) for each in files(topic)), "a lease does not end")
    with pytest.raises(DataLossError):
        direct.rows(reader, tasks)


def slowly(reader: ShardReader, task: InputPartition, seconds: float) -> int:
    """Reads a task in small batches with pauses, for so long at least; how many rows there were."""
    rows, began = 0, time.monotonic()
    for batch in reader.read(task):
        rows += batch.num_rows
        if time.monotonic() - began < seconds:
            time.sleep(0.5)
    assert time.monotonic() - began >= seconds, "too few batches"
    return rows


def test_a_task_that_reads_for_longer_than_its_lease_renews_it(topic: Topic) -> None:
    """Also for the tasks behind it, which begin when the lease of the plan is over (the test above: then they lose)."""
    wanted = sealed(topic)
    reader = direct.batch(cold(topic, lease="8s", batchBytes="1 KiB", maxRecordsPerPartition="700"))
    tasks = reader.partitions()
    assert len(tasks) > 3
    retain_few(topic)
    first = slowly(reader, tasks[0], 11.0)
    assert all(each.first >= 2990 for each in topic.bounds(segments=False)), "retention removes nothing"
    assert first + len(direct.rows(reader, tasks[1:])) == len(wanted)


def test_a_short_task_asks_for_nothing(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = direct.batch(cold(topic, lease="60s"))
    tasks = reader.partitions()
    monkeypatch.setattr(leases, "_ask", lambda *_: pytest.fail("asks"))
    assert len(direct.rows(reader, tasks)) == len(sealed(topic))


@pytest.mark.parametrize("jump_s", [-1e6, 1e6])
def test_a_clock_that_is_set_changes_no_renewal(topic: Topic, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """Neither too late, so that the files go, nor at once in every task."""
    reader = direct.batch(cold(topic, lease="60s"))
    tasks = reader.partitions()
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + jump_s)
    monkeypatch.setattr(leases, "_ask", lambda *_: pytest.fail("asks"))
    assert len(direct.rows(reader, tasks)) == len(sealed(topic))
    [leased, *_] = [task.leased for task in tasks if isinstance(task, SlicePartition)]
    asked: list[object] = []
    monkeypatch.setattr(leases, "_ask", lambda *given: asked.append(given))
    polling = TaskSettings.of(parse(cold(topic), streaming=False), direct.COLUMNS).polling
    leases.Renewal(polling, replace(leased, taken_s=leased.taken_s - 31)).look()
    assert len(asked) == 1, "half of the lease has gone by"


def test_a_task_on_another_machine_asks_when_it_begins(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monotonic clock has another beginning."""
    reader = direct.batch(cold(topic, lease="60s"))
    [task, *_] = reader.partitions()
    assert isinstance(task, SlicePartition)
    asked: list[object] = []
    monkeypatch.setattr(leases, "_ask", lambda *given: asked.append(given))
    task.leased = replace(task.leased, taken_s=task.leased.taken_s + 1e6, boot=bytes(16))
    assert direct.rows(reader, [task]) and len(asked) == 1


def test_without_a_lease_a_loss_is_told(topic: Topic) -> None:
    reader = direct.batch(cold(topic, lease="0"))
    tasks = reader.partitions()
    keep_few(topic)
    wait(lambda: not any("/00000000000000000000." in str(each) for each in files(topic)), "a file stays")
    with pytest.raises(DataLossError):
        direct.rows(reader, tasks)


def test_a_server_without_leases_is_read_all_the_same(topic: Topic) -> None:
    with StockProxy(topic.server.address) as proxy:
        place = {**topic.options(), "servers": proxy.address, "path": str(topic.server.data_dir)}
        assert len(direct.everything(place)) == 6000


def test_a_lease_has_a_bound(topic: Topic) -> None:
    assert parse(cold(topic), streaming=False).lease_s == 300
    with pytest.raises(OptionError, match="10m at most"):
        parse(cold(topic, lease="11m"), streaming=False)
