"""The released client 0.9, whose protocol is another one, on the same port as those before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd.protocol.extensions import ExtensionCode
from tests.support import clients, wire
from tests.support.server import Server
from tests.support.venvs import CLIENT_VERSIONS

VERSION = "0.9.0"
HERE = Path(__file__).parent
PAYLOADS = [f"message {n}".encode() for n in range(10)]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=["written", "durable"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    """The server and what the client saw."""
    server = Server(tmp_path_factory.mktemp("compat"), {"SHARDD_SYSTEM_PARTITION_ACK": request.param})
    server.start()
    try:
        arguments = [server.address, clients.connection_string(server.address)]
        (seen,) = clients.run(VERSION, HERE / "client_0_9.py", arguments)
        yield server, seen
    finally:
        server.stop()


def payloads(messages: list[dict[str, Any]]) -> list[bytes]:
    return [bytes.fromhex(item["payload"]) for item in messages]


def offsets(messages: list[dict[str, Any]]) -> list[int]:
    return [item["offset"] for item in messages]


def test_it_logs_in_and_is_refused_without(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert seen["wrong_password"] == "Invalid credentials"
    assert seen["before_login"] == "Unauthenticated"
    assert seen["missing_is_none"]


def test_it_creates_and_reads_streams_and_topics(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert seen["stream"] == [0, "orders", 1, 12]
    assert seen["topic"] == [0, "placed", 3, 12]
    assert seen["topic_by_number"] == "placed"
    assert seen["changes"] == {
        "topic": [2, 1],
        "compression": "gzip",
        "purged": 0,
        "topics": ["u"],
        "gone": True,
        "streams": ["levels", "made", "orders"],
    }


def test_it_polls_with_every_strategy(session: tuple[Server, Any]) -> None:
    _server, seen = session
    polls = seen["polls"]
    assert payloads(polls["first"]) == PAYLOADS
    assert offsets(polls["first"]) == list(range(10))
    assert offsets(polls["offset"]) == [7, 8, 9]
    assert polls["beyond"] == [] and polls["empty"] == []
    assert offsets(polls["last"]) == [7, 8, 9]
    assert offsets(polls["timestamp"]) == [5, 6, 7, 8, 9]
    assert offsets(polls["by_number"]) == [0, 1]
    assert payloads(polls["other"]) == [bytes(range(256)) * 400, "zürich ✈".encode()]
    assert {item["partition"] for item in polls["first"]} == {1}
    assert len({item["id"] for item in polls["first"]} - {"0"}) == 10


def test_with_auto_commit_it_reads_each_message_once(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert [offsets(part) for part in seen["polls"]["next"]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]


def test_batches_and_answers_of_every_size_arrive(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert set(seen["large"].values()) == {True}


def test_it_gets_each_error_and_stays_connected(session: tuple[Server, Any]) -> None:
    _server, seen = session
    starts = {
        "stream_exists": "Stream with name",
        "topic_exists": "Topic with name",
        "topic_without_stream": "Stream with ID",
        "too_many_partitions": "Too many partitions",
        "unknown_option": "Unsupported option key",
        "segment_size": "Unsupported option key",
        "messages_to_save": "Unsupported option key",
        "preallocate": "Unsupported option key",
        "bad_value": "Invalid option value",
        "send_without_stream": "Stream with ID",
        "send_without_topic": "Topic with ID",
        "send_without_partition": "Partition with ID",
        "poll_without_partition": "Partition with ID",
        "poll_without_stream": "Stream with ID",
        "poll_of_a_stranger": "Consumer group member",
    }
    for name, start in starts.items():
        assert seen["errors"].pop(name).startswith(start), name
    assert seen["errors"] == {"still_works": ""}


def test_a_level_is_never_weaker_than_asked_for(session: tuple[Server, Any]) -> None:
    server, seen = session
    with wire.connect(server.address) as classic:
        durable = wire.str8("ack") + wire.str8("durable")
        for topic in ("offsets", "text", "plain"):
            asked = wire.identifier("levels") + wire.identifier(topic)
            settings = classic.request(int(ExtensionCode.GET_TOPIC_SETTINGS), asked)
            assert (durable + b"\1" in settings) == (topic != "plain"), topic
        level = "persisted" if durable in settings else "replicated"  # of the server
    described = seen["described"]
    assert list(described) == [
        "compression_algorithm",
        "message_expiry",
        "max_topic_size",
        "durability",
        "consumer_offset_durability",
    ]
    assert described["durability"] == described["consumer_offset_durability"] == f'HeaderValue.String("{level}")'


def test_members_share_the_partitions(session: tuple[Server, Any]) -> None:
    _server, seen = session
    groups = seen["groups"]
    assert groups["empty"] == [0, 3] and groups["listed"] == ["readers"] and groups["gone"]
    expected = sorted(each.hex() for each in (*PAYLOADS, bytes(range(256)) * 400, "zürich ✈".encode()))
    assert groups["seen"] == expected
    assert groups["both"] == [1, 2] and groups["alone"] == [3]
    assert groups["later"] == [b"later".hex()]
    assert groups["not_a_member"].startswith("Consumer group member")


def test_producer_and_consumer_of_high_level_work(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert seen["high_level"] == {"got": [f"made {n}" for n in range(10)], "store": "", "delete": ""}


def test_users_have_their_rights(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert seen["users"] == {
        "made": "reader",
        "again": "User already exists",
        "forbidden": "Unauthorized",
        "after_logout": "Unauthenticated",
        "listed": ["iggy", "reader2"],
        "gone": True,
    }


def test_what_it_stored_all_others_read(session: tuple[Server, Any]) -> None:
    server, _seen = session
    with wire.connect(server.address) as connection:
        messages = connection.poll("orders", "placed", 1, count=10).messages
        large = connection.poll("orders", "large", 0, count=2000).messages
    assert [item.payload for item in messages] == PAYLOADS
    assert {item.headers for item in large[1000:]} == {bytes.fromhex("02010000006b020100000076")}
    for version in CLIENT_VERSIONS:
        arguments = [clients.connection_string(server.address), "made", "t"]
        (read,) = clients.run(version, HERE / "client_read.py", arguments)
        assert {bytes.fromhex(each) for each in read} <= {f"made {n}".encode() for n in range(10)}


def test_the_first_message_of_the_readme(tmp_path: Path) -> None:
    """As it stands there but for the address; this client may abort at the end of its interpreter."""
    text = (HERE.parents[1] / "README.md").read_text()
    (program,) = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    with Server(tmp_path / "data") as server:
        assert "127.0.0.1:8090" in program
        script = tmp_path / "first.py"
        script.write_text(program.replace("127.0.0.1:8090", server.address))
        process = clients.start(VERSION, script, [])
        output, errors = process.communicate(timeout=clients.RUN_TIMEOUT_S)
        assert output == "0 first\n1 second\n", errors
