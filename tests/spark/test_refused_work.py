"""What a server refuses: a topic that is full for a while, and users without a right. No Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from immutables import Map
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.client import Connection, Credentials
from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.spark.server import TopicMissingError
from shardd.spark.sinks.topic import writers as sink
from shardd.spark.sinks.topic.journal import JournalError
from shardd.spark.sinks.topic.sender import FrameDeliveryError
from shardd.spark.sinks.topic.server import RightMissingError
from shardd.spark.sinks.topic.writers import Work
from tests.spark import direct
from tests.spark.support import DEADLINE_S, Topic
from tests.spark.test_topic_delivery import options, rows, stored, values
from tests.support import wire
from tests.support.server import Server

FULL = 100


@pytest.fixture
def stream(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"f{abs(hash(request.node.name))}"
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream(name), "out", 2)
        yield name
        connection.delete_stream(name)


def limit(server: Server, stream: str, messages: int) -> None:
    with Connection(server.address, Credentials("iggy", "iggy")) as connection:
        settings = (("partition_messages_max", str(messages)), ("discard", "refuse"))
        connection.set_topic_settings(SetTopicSettings(stream, "out", settings))


@pytest.mark.parametrize("semantics", ["at-least-once", "stable-ids", "idempotent"])
def test_a_topic_that_is_full_is_tried_again_until_it_has_room(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch, semantics: str
) -> None:
    limit(server, stream, FULL)
    monkeypatch.setattr(sink, "task_number", lambda: 0)
    how = {"journal": "none"} if semantics == "at-least-once" else {"semantics": semantics, "order": "source"}
    given, work = options(server.address, stream, batchBytes="1024", **how), Work(f"of {stream}", "run", 0)
    done: list[int] = []
    writer = threading.Thread(target=lambda: done.append(sink.write(given, work, rows(0, 1000)).rows))
    writer.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while len(stored(server, stream)) < FULL // 2:
            assert time.monotonic() < deadline and writer.is_alive(), done
            time.sleep(0.05)
    finally:
        limit(server, stream, 100_000)
        writer.join(DEADLINE_S)
    assert done == [1000] and sorted(values(stored(server, stream))) == list(range(1000))


def test_topic_that_is_full_for_more_than_a_thousand_attempts_is_tried_on(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour of them, where a day is allowed."""
    limit(server, stream, FULL)
    pauses_s: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses_s.append(pause_s)
        if len(pauses_s) == 1100:
            limit(server, stream, 100_000)

    monkeypatch.setattr(time, "sleep", sleep)
    given = options(server.address, stream, journal="none", deliveryTimeoutMs="86400000")
    assert sink.write(given, Work("", "", 0), rows(0, 1000)).rows == 1000
    assert max(pauses_s) == 2.0


def test_a_topic_that_stays_full_is_told_when_the_time_is_over(server: Server, stream: str) -> None:
    limit(server, stream, FULL)
    given = options(server.address, stream, journal="none", deliveryTimeoutMs="300")
    with pytest.raises(FrameDeliveryError, match=r"within 0\.3 s \(option 'deliveryTimeoutMs'\).*TOPIC_FULL"):
        sink.write(given, Work("", "", 0), rows(0, 1000))


def someone(server: Server, stream: str, **rights: bool) -> dict[str, str]:
    with wire.connect(server.address) as connection:
        topics = Map({0: TopicPermissions(**rights)})
        given = Permissions(streams=Map({connection.streams()[stream]: StreamPermissions(topics=topics)}))
        user = account_requests.CreateUserRequest(f"u-{'-'.join(rights)}-{stream}"[:40], "secret", 1, given)
        connection.request(Code.CREATE_USER, user.encode())
    return {"username": user.username, "password": "secret"}


def test_a_right_that_is_missing_is_named(server: Server, stream: str) -> None:
    who = someone(server, stream, read_topic=True)
    given = options(server.address, stream, journal="none", **who)
    with pytest.raises(
        FrameDeliveryError, match=f"needs the right send_messages .*--grant '{stream}/out:send_messages'"
    ):
        sink.write(given, Work("", "", 0), rows(0, 10))
    with pytest.raises(JournalError, match="rights poll_messages and send_messages there, and manage_topics"):
        sink.write(options(server.address, stream, **who), Work("query", "run", 0), rows(0, 10))
    with pytest.raises(RightMissingError, match=f"right read_topic .*--grant '{stream}/out:read_topic'"):
        sink.write(
            options(server.address, stream, journal="none", **someone(server, stream, send_messages=True)),
            Work("", "", 0),
            rows(0, 1),
        )
    given = options(server.address, stream, topic=f"{stream}/fresh", journal="none", **who)
    with pytest.raises(RightMissingError, match="manage_topics in the stream"):
        sink.write(given, Work("", "", 0), rows(0, 10))


def test_a_reader_without_the_right_is_told_which(server: Server, stream: str) -> None:
    who = someone(server, stream, send_messages=True)
    with wire.connect(server.address) as connection:
        place = {**Topic(server, stream, connection, topic="out").options(), **who}
    with pytest.raises(TopicMissingError, match=f"right poll_messages .*--grant '{stream}/out:poll_messages'"):
        direct.everything(place)
    pattern = {name: value for name, value in place.items() if name != "subscribe"}
    with pytest.raises(TopicMissingError, match="needs the right read_streams"):
        direct.everything({**pattern, "subscribePattern": ".*"})


@pytest.mark.parametrize("pipeline", [("dedup",), ("compact", "--key", "json:$.a")])
def test_the_options_of_a_table_are_looked_at(
    server: Server, stream: str, tmp_path: Path, pipeline: tuple[str, ...]
) -> None:
    """Before Java is started."""
    name, *words = pipeline
    at = ["pipeline", name, f"{stream}/out", *words, "--servers", server.address, "--dry-run"]
    at += ["--to", f"delta:{tmp_path}", "-o", "username=iggy", "-o", "password=iggy"]
    if name == "dedup":
        at += ["--state-dir", str(tmp_path)]
    assert CliRunner().invoke(app, [*at, "--to-option", "mergeSchema=true"]).exit_code == 0
    for wrong, said in (("mergeSchema=perhaps", "must be true or false"), ("mergeSchemas=true", "unknown option")):
        result = CliRunner().invoke(app, [*at, "--to-option", wrong])
        assert result.exit_code != 0 and said in result.output
