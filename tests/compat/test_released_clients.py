"""The released `apache-iggy` clients, unchanged, each in its own environment, against one fresh server each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import clients, wire
from tests.support.server import Server
from tests.support.venvs import CLIENT_VERSIONS

SCRIPT = Path(__file__).parent / "client_session.py"
HEADERS = bytes.fromhex("02010000006b020100000076")  # one user header: string k = string v

# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(
    scope="module",
    params=[*((version, "written") for version in CLIENT_VERSIONS), (CLIENT_VERSIONS[-1], "durable")],
    ids=lambda param: "-".join(param),
)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    """The server and what the client saw."""
    version, level = request.param
    server = Server(tmp_path_factory.mktemp("compat"), {"SHARDD_SYSTEM_PARTITION_ACK": level})
    server.start()
    try:
        arguments = [server.address, clients.connection_string(server.address)]
        (seen,) = clients.run(version, SCRIPT, arguments)
        yield server, seen
    finally:
        server.stop()


def payloads(messages: list[dict[str, Any]]) -> list[str]:
    return [bytes.fromhex(item["payload"]).decode() for item in messages]


def offsets(messages: list[dict[str, Any]]) -> list[int]:
    return [item["offset"] for item in messages]


def test_client_logs_in_and_is_refused_without(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert seen["wrong_password"] == "InvalidCredentials"
    assert seen["before_login"] == "Unauthenticated"


def test_client_creates_and_reads_stream_and_topic(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert seen["missing_is_none"]
    assert seen["stream"] == [0, "orders", 1, 12]
    assert seen["topic"] == [0, "placed", 3, 12]
    assert seen["topic_by_number"] == "placed"


def test_client_polls_with_every_strategy(session: tuple[Server, Any]) -> None:
    _server, seen = session
    polls = seen["polls"]
    assert payloads(polls["first"]) == [f"message {n}" for n in range(10)]
    assert offsets(polls["first"]) == list(range(10))
    assert offsets(polls["offset"]) == [7, 8, 9]
    assert polls["beyond"] == []
    assert offsets(polls["last"]) == [7, 8, 9]
    assert offsets(polls["timestamp"]) == [5, 6, 7, 8, 9]
    assert offsets(polls["by_number"]) == [0, 1]
    assert polls["empty"] == []
    assert polls["other"][0]["payload"] == (bytes(range(256)) * 400).hex()
    assert bytes.fromhex(polls["other"][1]["payload"]).decode() == "zürich ✈"


def test_client_with_auto_commit_reads_each_message_once(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert [offsets(part) for part in seen["polls"]["next"]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]


def test_client_sees_ids_clocks_and_partitions(session: tuple[Server, Any]) -> None:
    _server, seen = session
    messages = seen["polls"]["first"]
    assert len({item["id"] for item in messages}) == 10
    assert "0" not in {item["id"] for item in messages}
    assert {item["partition"] for item in messages} == {1}
    assert all(abs(item["timestamp_us"] - time.time() * 1e6) < 600e6 for item in messages)
    assert [item["length"] for item in messages] == [len(f"message {n}") for n in range(10)]


def test_client_gets_each_error_and_stays_connected(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert {name: text.split("(")[0] for name, text in seen["errors"].items()} == {
        "stream_exists": "StreamNameAlreadyExists",
        "topic_exists": "TopicNameAlreadyExists",
        "topic_without_stream": "StreamIdNotFound",
        "too_many_partitions": "TooManyPartitions",
        "send_without_stream": "StreamIdNotFound",
        "send_without_topic": "TopicIdNotFound",
        "send_without_partition": "PartitionNotFound",
        "poll_without_partition": "PartitionNotFound",
        "poll_without_stream": "StreamIdNotFound",
        "still_works": "",
    }


def test_message_of_the_client_reads_the_same_on_the_raw_wire(session: tuple[Server, Any]) -> None:
    server, seen = session
    with wire.connect(server.address) as connection:
        messages = connection.poll("orders", "placed", 1, count=10).messages
    assert [item.payload.hex() for item in messages] == [item["payload"] for item in seen["polls"]["first"]]
    assert [item.checksum for item in messages] == [item["checksum"] for item in seen["polls"]["first"]]


def test_user_headers_of_the_raw_wire_do_not_disturb_the_client(session: tuple[Server, Any]) -> None:
    server, _seen = session
    with wire.connect(server.address) as connection:
        stream = connection.create_stream("with headers")
        connection.create_topic(stream, "t", 1)
        plain, described = wire.message(b"plain"), wire.message(b"described", HEADERS)
        connection.send(stream, 0, wire.to_partition(0), [plain, described, plain])
        kept = connection.poll(stream, 0, 0).messages
    assert [(item.payload, item.headers) for item in kept] == [
        (b"plain", b""),
        (b"described", HEADERS),
        (b"plain", b""),
    ]
    reader = Path(__file__).parent / "client_read.py"
    for version in CLIENT_VERSIONS:
        (seen,) = clients.run(version, reader, [clients.connection_string(server.address), "with headers", "t"])
        assert seen == [b"plain".hex(), b"described".hex(), b"plain".hex()]
