"""What is stored and not known to be on the device: a batch query waits for it, or says that it does not come; it never
reads less without a word. No Spark."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from shardd.protocol.requests import FlushUnsavedBuffer
from shardd.spark import durable, server
from shardd.spark.pipelines import archive, audit, compact
from shardd.spark.pipelines.archive import Target
from tests.spark import direct
from tests.spark.support import Topic, settle, source_of
from tests.support import wire
from tests.support.links import root_link
from tests.support.server import Server

SOON = "5 s"
NEVER = "1 h"


@contextmanager
def served(directory: Path, interval: str) -> Iterator[Topic]:
    """Two partitions, 300 messages each."""
    env = {"SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": interval}
    with Server(directory / "data", env=env) as running, wire.connect(running.address) as connection:
        connection.create_topic(connection.create_stream("s"), "rows", 2)
        topic = Topic(running, "s", connection)
        for partition in range(2):
            topic.send(partition, 300)
        yield topic


def test_a_batch_query_reads_all_that_was_sent_before(tmp_path: Path) -> None:
    with served(tmp_path, SOON) as topic:
        assert set(direct.everything(topic.options())) == topic.rows()


def test_a_batch_query_after_the_death_of_the_workers_reads_everything(tmp_path: Path) -> None:
    """For a moment the owners know of nothing but the last checkpoint that it is on the device."""
    with served(tmp_path, SOON) as topic:
        settle(topic)
        for pid in topic.server.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert set(direct.everything(topic.options())) == topic.rows()


def test_a_stream_that_takes_what_there_is_reads_everything(tmp_path: Path) -> None:
    """Under AvailableNow it ends with what was planned at its beginning."""
    with served(tmp_path, SOON) as topic:
        settle(topic)
        for pid in topic.server.worker_pids():
            os.kill(pid, signal.SIGKILL)
        stream = direct.Stream(topic.options(startingOffsets="earliest"))
        stream.reader.prepareForTriggerAvailableNow()
        assert set(stream.run()) == topic.rows()


def test_a_batch_query_brings_what_it_reads_to_the_device(tmp_path: Path) -> None:
    """The server by itself would do it an hour later."""
    with served(tmp_path, NEVER) as topic:
        assert set(direct.everything(topic.options())) == topic.rows()
        stream = direct.Stream(topic.options(startingOffsets="earliest"))
        topic.send(0, 5)
        stream.reader.prepareForTriggerAvailableNow()
        assert set(stream.run()) == topic.rows()


def test_the_right_to_poll_is_enough_to_ask_for_a_sync(tmp_path: Path) -> None:
    with served(tmp_path, NEVER) as topic:
        rights = Permissions(read_streams=True, read_topics=True, poll_messages=True)
        request = account_requests.CreateUserRequest("reader", "secret", 1, rights)
        topic.connection.request(Code.CREATE_USER, request.encode())
        options = topic.options(username="reader", password="secret")
        assert set(direct.everything(options)) == topic.rows()


def planned_rows(topic: Topic, directory: Path, **options: str) -> tuple[int, int]:
    """How many the tasks of an archive and of an audit are to read, and do read."""
    source = source_of(topic, **options)
    jobs = archive.plan(source, Target("parquet", str(directory / "archive")))[0]
    rows = sum(job.run()["rows"] for job in jobs)
    reports = [job.run() for job in audit.plan(source, None)[0]]
    assert not [each for each in reports if each["faults"]]
    return rows, sum(each["rows"] for each in reports)


@pytest.mark.parametrize("interval", [SOON, NEVER])
def test_archive_and_audit_take_all_that_was_sent_before(tmp_path: Path, interval: str) -> None:
    with served(tmp_path, interval) as topic:
        assert planned_rows(topic, tmp_path) == (600, 600)
        if interval == SOON:
            settle(topic)
        for pid in topic.server.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert planned_rows(topic, tmp_path / "again") == (600, 600)


def test_a_compaction_that_follows_sees_what_was_sent_before(tmp_path: Path) -> None:
    """The server by itself would tell of it an hour later."""
    with served(tmp_path, NEVER) as topic:
        work = compact.Compaction(source_of(topic), "header:kind", table=str(tmp_path / "table"))
        before = compact.ends(work)
        assert [end for _, end in before] == [300, 300]
        topic.send(0, 5)
        assert [end for _, end in compact.ends(work)] == [305, 300]


def test_archive_and_audit_say_that_a_sync_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.Server, "ask_sync", lambda *_: None)
    monkeypatch.setattr(durable, "WAIT_S", 0.5)
    with served(tmp_path, NEVER) as topic:
        said = r"offsets 0 to 300 of partition 0 of 's/rows' .* are not known to be on the device"
        with pytest.raises(durable.NotDurableError, match=said):
            archive.plan(source_of(topic), Target("parquet", str(tmp_path / "archive")))
        with pytest.raises(durable.NotDurableError, match=said):
            audit.plan(source_of(topic), None)
        assert planned_rows(topic, tmp_path, isolation="visible") == (600, 600)
        cold = source_of(topic, path=str(topic.server.data_dir), readMode="cold")
        assert audit.plan(cold, None)[0] == []


def test_a_cold_query_waits_only_for_segments_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.Server, "ask_sync", lambda *_: None)
    monkeypatch.setattr(durable, "WAIT_S", 0.5)
    with served(tmp_path, NEVER) as topic:
        options = topic.options(path=str(topic.server.data_dir), readMode="cold")
        assert direct.everything(options) == []


def test_a_sync_that_does_not_come_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert durable.WAIT_S < 30
    monkeypatch.setattr(durable, "WAIT_S", 0.5)
    monkeypatch.setattr(server.Server, "ask_sync", lambda *_: None)  # as a server of an earlier version
    with served(tmp_path, NEVER) as topic:
        request = FlushUnsavedBuffer("s", "rows", 0, True).encode()
        with root_link(topic.server.address) as connection:
            connection.request(Code.FLUSH_UNSAVED_BUFFER, request)
        said = r"offsets 0 to 300 of partition 1 of 's/rows' are not known .*sync_interval .* isolation=visible"
        with pytest.raises(durable.NotDurableError, match=said):
            direct.everything(topic.options())
        stream = direct.Stream(topic.options())
        with pytest.raises(durable.NotDurableError, match=said):
            stream.reader.prepareForTriggerAvailableNow()
        assert set(direct.everything(topic.options(isolation="visible"))) == topic.rows()
        ends = json.dumps({"s/rows": {"0": 200, "1": 0}})  # what is asked for is on the device
        assert len(direct.everything(topic.options(endingOffsets=ends))) == 200
        ends = json.dumps({"s/rows": {"0": 200, "1": 1}})
        with pytest.raises(durable.NotDurableError, match=said):
            direct.everything(topic.options(endingOffsets=ends))
