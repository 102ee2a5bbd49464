"""copy, replay, compact, dedup: as commands, on a real session and a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from tests.spark.support import Topic, header, settle
from tests.spark.test_pipeline_commands import last, refused
from tests.spark.test_pipeline_commands import run as command
from tests.spark.test_topic_sink import payloads, written
from tests.support import wire
from tests.support.server import Server
from tests.support.wide import wide

FOLLOW_S = 300.0


@pytest.fixture(autouse=True)
def server_of_commands(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SERVERS", server.address), ("USERNAME", "iggy"), ("PASSWORD", "iggy")):
        monkeypatch.setenv(f"SHARDD_{name}", value)


def run(name: str, topic: Topic, *words: str) -> dict[str, Any]:
    who = ("-o", "username=iggy", "-o", "password=iggy")
    return last(command("pipeline", name, topic.name, *words, *who))


def to(topic: Topic, name: str = "copy") -> tuple[str, str]:
    return "--to", f"{topic.stream}/{name}"


def kept(messages: list[wire.Message]) -> list[tuple[bytes, bytes, bytes, int]]:
    return [(each.payload, each.headers, each.id, each.origin_timestamp_us) for each in messages]


# ---- copy and replay ----


def test_copy_keeps_everything_and_goes_on(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    planned = run("copy", topic, *to(topic), *state, "--dry-run")
    assert (planned["messages"], planned["partitions"], planned["creates"]) == (6000, 2, True)
    with wire.connect(topic.server.address) as connection:
        assert not connection.partitions(topic.stream, "copy"), "nothing is made"
    assert run("copy", topic, *to(topic), *state, "-o", "maxOffsetsPerTrigger=2500")["rows"] == 6000
    topic.send(1, 300)
    settle(topic)
    assert run("copy", topic, *to(topic), *state, "--dry-run")["messages"] == 300
    assert run("copy", topic, *to(topic), *state)["rows"] == 300
    before, after = written(topic, "rows"), written(topic)
    assert {n: kept(each) for n, each in after.items()} == {n: kept(each) for n, each in before.items()}


def test_copy_to_another_server(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """To a topic of the same name."""
    with Server(tmp_path / "data") as other:
        words = ("--to-servers", other.address, "--state-dir", str(tmp_path / "state"), "--new-ids")
        assert run("copy", topic, "--to", topic.name, *words)["rows"] == 6000
        with wire.connect(other.address) as connection:
            for partition, messages in topic.payloads.items():
                found = connection.read_all(topic.stream, "rows", partition)
                assert [each.payload for each in found] == messages


def test_replay_of_an_archive_whose_topic_is_gone(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    archive = f"parquet:{tmp_path / 'archive'}"
    run("archive", topic, "--to", archive)
    before = written(topic, "rows")
    topic.connection.delete_stream(topic.stream)
    topic.connection.create_stream(topic.stream)
    who = ("--to-option", "username=iggy", "--to-option", "password=iggy")
    words = ("pipeline", "replay", archive, "--topic", topic.name, *to(topic), "--state-dir", str(tmp_path), *who)
    assert last(command(*words))["rows"] == 6000
    assert last(command(*words))["rows"] == 0, "a second run has nothing to do"
    after = written(topic)
    assert {n: kept(each) for n, each in after.items()} == {n: kept(each) for n, each in before.items()}


def test_replay_of_a_range_of_times(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    archive = f"parquet:{tmp_path / 'archive'}"
    run("archive", topic, "--to", archive)
    rows = [each for messages in written(topic, "rows").values() for each in messages]
    times = sorted({each.timestamp_us // 1000 for each in rows})
    begin_ms, end_ms = times[len(times) // 4], times[len(times) * 3 // 4] + 1
    wanted = sorted(each.payload for each in rows if begin_ms * 1000 <= each.timestamp_us < end_ms * 1000)
    who = ("--to-option", "username=iggy", "--to-option", "password=iggy")
    words = ("--topic", topic.name, *to(topic), "--state-dir", str(tmp_path), *who)
    bounds = ("--from", str(begin_ms), "--until", str(end_ms))
    last(command("pipeline", "replay", archive, *words, *bounds))
    assert sorted(each for messages in payloads(written(topic)).values() for each in messages) == wanted


def test_what_is_wrong_is_said_before_a_session_starts(topic: Topic, tmp_path: Path) -> None:
    with wire.connect(topic.server.address) as connection:
        connection.create_topic(topic.stream, "narrow", 1)
    at = ("pipeline", "copy", topic.name, "--state-dir", str(tmp_path))
    refused(command(*at, "--to", topic.name), "would be written into itself")
    refused(command(*at, *to(topic, "narrow")), "has 1 partitions")
    refused(command(*at, *to(topic), "--to-option", "topics=x"), "did you mean 'topic'?")
    replay = ("pipeline", "replay", "delta:/nowhere", "--topic", topic.name, *to(topic))
    refused(command(*replay), "replay reads 'parquet:DIR'")
    refused(command("pipeline", "compact", topic.name, "--key", "id", *to(topic)), "--key is 'id'")
    refused(command("pipeline", "compact", topic.name, "--key", "json:$.a", "--to", topic.name), "into itself")
    refused(command("pipeline", "compact", topic.name, "--key", "json:$.a", *to(topic), "--follow"), "written once")
    refused(command("pipeline", "dedup", topic.name, "--by", "offset", *to(topic)), "--by is 'offset'")
    refused(command("pipeline", "dedup", topic.name, "--within", "soon", *to(topic)), "no duration")


# ---- compact and dedup ----


def test_compact_keeps_the_latest_of_each_key(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    changes = changes_of(topic)
    deleted = {f"{partition}:{n}" for partition in range(2) for n in range(15, 20)}
    live = {f"{partition}:{n}" for partition in range(2) for n in range(20)} - deleted
    assert run("compact", changes, "--key", "header:key", *to(changes, "latest"))["rows"] == 30
    found = [json.loads(each) for messages in payloads(written(changes, "latest")).values() for each in messages]
    assert {each["id"]: each["n"] for each in found} == {key: 380 + int(key.split(":")[1]) for key in live}
    refused(
        command("pipeline", "compact", changes.name, "--key", "header:key", *to(changes, "latest")), "has 30 messages"
    )
    kept_too = ("--keep-deleted", "--to", f"delta:{tmp_path}")
    for _ in range(2):
        assert run("compact", changes, "--key", "header:key", *kept_too)["rows"] == 40
    by_json = run("compact", changes, "--key", "json:$.id", *to(changes, "by_json"))
    assert by_json["rows"] == 40, "messages without the field are left out, so nothing is deleted"


def changes_of(topic: Topic) -> Topic:
    """A topic of changes: json and header name the key; the last ones, without payload, delete theirs."""
    with wire.connect(topic.server.address) as connection:
        connection.create_topic(topic.stream, "changes", 2)
    made = Topic(topic.server, topic.stream, topic.connection, topic="changes")
    for partition in range(2):
        batch, known = [], made.payloads.setdefault(partition, [])
        for n in range(400):
            key = f"{partition}:{n % 20}"
            payload = b"" if n >= 395 else json.dumps({"id": key, "n": n}).encode()
            known.append(payload)
            batch.append(wire.message(payload, header("key", key), origin_timestamp_us=1000 + n))
        topic.connection.send(topic.stream, "changes", wire.to_partition(partition), batch)
    settle(made)
    return made


@pytest.mark.parametrize("within", [(), wide(("--within", "1h"))])
def test_dedup_removes_what_was_sent_twice(
    spark: SparkSession, topic: Topic, tmp_path: Path, within: tuple[str, ...]
) -> None:
    """By id, over the border of two runs; everything once, nothing missing."""
    twice(topic)
    words = (*to(topic, "once"), "--state-dir", str(tmp_path), *within)
    run("dedup", topic, *words, "-o", "maxOffsetsPerTrigger=2500")
    twice(topic)
    run("dedup", topic, *words)
    before, after = written(topic, "rows"), written(topic, "once")
    ids = [each.id for messages in after.values() for each in messages]
    assert len(ids) == len(set(ids))
    assert set(ids) == {each.id for messages in before.values() for each in messages}


def test_dedup_gives_its_table_the_options_of_the_sink(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"value": pa.array([b"before"], pa.binary())}))
    words = ("-o", "username=iggy", "-o", "password=iggy", "--to", f"delta:{table}")
    refused(command("pipeline", "dedup", topic.name, *words, "--state-dir", str(tmp_path / "narrow")), "mergeSchema")
    run("dedup", topic, *words, "--state-dir", str(tmp_path / "wide"), "--to-option", "mergeSchema=true")
    rows = DeltaTable(table).to_pyarrow_table().column("value").to_pylist()
    assert sorted(rows) == sorted([b"before", *(payload for _, _, payload in topic.rows())])


def twice(topic: Topic) -> None:
    """Sends the first messages of each partition again, as a client does that got no answer."""
    for partition, messages in written(topic, "rows").items():
        batch = [wire.message(each.payload, each.headers, message_id=each.id) for each in messages[:500]]
        topic.connection.send(topic.stream, "rows", wire.to_partition(partition), batch)
        topic.payloads[partition] += [each.payload for each in messages[:500]]
    settle(topic)


# ---- --follow ----


def until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + FOLLOW_S
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing has followed"
        time.sleep(0.2)


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ("replay", "dedup", "compact", "aggregate", "archive")]


@pytest.mark.parametrize("name", ["copy", *SLOW])
def test_what_follows_sees_what_comes_later(topic: Topic, tmp_path: Path, name: str) -> None:
    """As a process of its own. SIGTERM ends it in order; started again it goes on where it was; SIGINT ends it, too."""
    followed = Followed(topic, tmp_path, name)
    with followed.process() as process:
        until(lambda: followed.count() == 6000, process)
        followed.send(0, 100)
        until(lambda: followed.count() == 6100, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, followed.said()
    assert json.loads(followed.said().splitlines()[-1])["rows"] == (3 if name == "compact" else 6100)
    followed.send(1, 50)
    if name == "copy":  # in this process: another JVM costs more than the test
        assert run("copy", topic, *to(topic), "--state-dir", str(tmp_path / "state"))["rows"] == 50
        assert payloads(written(topic)) == topic.payloads
    elif name != "compact":
        with followed.process() as process:
            until(lambda: followed.count() == 6150, process)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130, followed.said()


class Followed:
    """A pipeline with --follow."""

    def __init__(self, topic: Topic, directory: Path, name: str) -> None:
        self._topic, self._directory, self._name = topic, directory, name
        self._archive = f"parquet:{directory}/archive"
        table = f"{'parquet' if name == 'archive' else 'delta'}:{directory}/table"
        target = to(topic) if name in ("copy", "dedup", "replay") else ("--to", table)
        more = {
            "archive": ("--interval", "0.5"),
            "compact": ("--interval", "0.5", "--key", "header:kind"),
            "aggregate": ("--by", "partition"),
            "replay": ("--to-option", "username=iggy", "--to-option", "password=iggy"),
        }.get(name, ())
        source = (self._archive, "--topic", topic.name) if name == "replay" else (topic.name,)
        state = () if name in ("archive", "compact") else ("--state-dir", str(directory / "state"))
        program = str(Path(sys.executable).with_name("shardd"))
        self._words = [program, "pipeline", name, *source, *target, *more, *state, "--follow", "--master", "local[2]"]
        self._to_archive()

    def _to_archive(self) -> None:
        if self._name == "replay":
            run("archive", self._topic, "--to", self._archive)

    def send(self, partition: int, count: int) -> None:
        self._topic.send(partition, count)
        settle(self._topic)
        self._to_archive()

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[str]]:
        with (self._directory / "log").open("w") as output:
            made = subprocess.Popen(self._words, stdout=output, stderr=output, text=True, env={**os.environ})
        try:
            yield made
        finally:
            if made.poll() is None:
                made.kill()
                made.wait(30)

    def said(self) -> str:
        return (self._directory / "log").read_text()[-2000:]

    def count(self) -> int:
        """Rows or messages that have arrived."""
        if self._name in ("copy", "dedup", "replay"):
            with wire.connect(self._topic.server.address) as connection:
                return sum(each.messages_count for each in connection.partitions(self._topic.stream, "copy"))
        if self._name == "archive":
            found = [pq.ParquetFile(each) for each in (self._directory / "table").rglob("*.parquet")]
            return sum(each.metadata.num_rows for each in found)
        try:
            rows = DeltaTable(str(self._directory / "table")).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return 0
        if self._name == "compact":  # the last message with the header is the tenth from the end of its partition
            return int(max(row["offset"] for row in rows)) + 10 + 3000
        return int(sum(row["count"] for row in rows))
