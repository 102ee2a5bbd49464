"""What the API of Apache Iggy 0.8 answers, row by row: every endpoint with its status and the fields of its JSON, every
error with its HTTP status and field, sizes as texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from shardd.doors.http.app import ENDPOINTS
from shardd.doors.http.errors import error_response
from shardd.doors.http.sizes import size_text
from shardd.protocol.errors import ShardError, Status
from tests.doors.http_server import HttpClient, HttpServer

NEVER: Final = 2**64 - 1
STREAM: Final = {"id", "created_at", "name", "size", "messages_count", "topics_count"}
TOPIC: Final = {
    "id", "created_at", "name", "size", "message_expiry", "compression_algorithm", "max_topic_size",
    "replication_factor", "messages_count", "partitions_count",
}  # fmt: skip
PARTITION: Final = {"id", "created_at", "segments_count", "current_offset", "size", "messages_count"}
GROUP: Final = {"id", "name", "partitions_count", "members_count"}
CLIENT: Final = {"client_id", "user_id", "address", "transport", "consumer_groups_count"}
USER: Final = {"id", "created_at", "status", "username"}
OFFSET: Final = {"partition_id", "current_offset", "stored_offset"}
POLLED: Final = {"partition_id", "current_offset", "count", "messages"}
HEADER: Final = {
    "checksum", "id", "offset", "timestamp", "origin_timestamp", "user_headers_length", "payload_length", "reserved",
}  # fmt: skip
IDENTITY: Final = {"user_id", "access_token"}
STATS: Final = [
    "process_id", "cpu_usage", "total_cpu_usage", "memory_usage", "total_memory", "available_memory", "run_time",
    "start_time", "read_bytes", "written_bytes", "messages_size_bytes", "streams_count", "topics_count",
    "partitions_count", "segments_count", "messages_count", "clients_count", "consumer_groups_count", "hostname",
    "os_name", "os_version", "kernel_version", "iggy_server_version", "iggy_server_semver", "cache_metrics",
    "threads_count", "free_disk_space", "total_disk_space",
]  # fmt: skip
LOGIN: Final = {"username": "iggy", "password": "iggy"}
NEW_TOPIC: Final = {
    "name": "t", "partitions_count": 2, "compression_algorithm": "none", "message_expiry": NEVER,
    "max_topic_size": NEVER, "replication_factor": 1,
}  # fmt: skip
SENT: Final = {
    "partitioning": {"kind": "partition_id", "value": "AQAAAA=="},
    "messages": [
        {
            "id": 2**100,
            "payload": "aGVsbG8=",
            "user_headers": [{"key": {"kind": "string", "value": "aw=="}, "value": {"kind": "uint8", "value": "Bw=="}}],
        },
        {"payload": "eA=="},
    ],
}
AT: Final = "/streams/s/topics/t"
# In this order: method, path, body, status, fields of the JSON (of its items, where it is a list; None: no body)
CASES: Final[tuple[tuple[str, str, object, int, set[str] | None], ...]] = (
    ("GET", "/stats", None, 200, set(STATS)),
    ("GET", "/cluster/metadata", None, 200, {"name", "nodes"}),
    ("GET", "/clients", None, 200, CLIENT),
    ("POST", "/users/login", LOGIN, 200, IDENTITY),
    ("POST", "/users", {"username": "one", "password": "secret", "status": "active"}, 200, USER | {"permissions"}),
    ("GET", "/users", None, 200, USER),
    ("GET", "/users/one", None, 200, USER | {"permissions"}),
    ("GET", "/users/nobody", None, 404, {"id", "code", "reason", "field"}),
    ("PUT", "/users/one", {"username": "two", "status": None}, 204, None),
    ("PUT", "/users/two/permissions", {"permissions": None}, 204, None),
    ("PUT", "/users/two/password", {"current_password": "secret", "new_password": "other"}, 204, None),
    ("DELETE", "/users/two", None, 204, None),
    ("POST", "/personal-access-tokens", {"name": "pat", "expiry": 0}, 200, {"token"}),
    ("GET", "/personal-access-tokens", None, 200, {"name", "expiry_at"}),
    ("DELETE", "/personal-access-tokens/pat", None, 204, None),
    ("POST", "/streams", {"name": "s"}, 200, STREAM | {"topics"}),
    ("GET", "/streams", None, 200, STREAM),
    ("GET", "/streams/s", None, 200, STREAM | {"topics"}),
    ("GET", "/streams/nothing", None, 404, {"id", "code", "reason", "field"}),
    ("PUT", "/streams/s", {"name": "renamed"}, 204, None),
    ("PUT", "/streams/renamed", {"name": "s"}, 204, None),
    ("POST", "/streams/s/topics", NEW_TOPIC, 200, TOPIC | {"partitions"}),
    ("GET", "/streams/s/topics", None, 200, TOPIC),
    ("GET", AT, None, 200, TOPIC | {"partitions"}),
    ("PUT", AT, {key: value for key, value in NEW_TOPIC.items() if key != "partitions_count"}, 204, None),
    ("POST", f"{AT}/partitions", {"partitions_count": 1}, 201, None),
    ("DELETE", f"{AT}/partitions?partitions_count=1", None, 204, None),
    ("POST", f"{AT}/messages", SENT, 201, None),
    ("GET", f"{AT}/messages?consumer_id=1&partition_id=1&kind=first&value=0&count=10", None, 200, POLLED),
    ("GET", f"{AT}/messages", None, 200, POLLED),
    ("GET", f"{AT}/messages/flush/1/true", None, 200, None),
    ("GET", f"{AT}/messages/flush/1/fsync=true", None, 200, None),
    ("GET", f"{AT}/consumer-offsets?consumer_id=1&partition_id=1", None, 404, {"id", "code", "reason", "field"}),
    ("PUT", f"{AT}/consumer-offsets", {"consumer_id": "1", "partition_id": 1, "offset": 1}, 204, None),
    ("GET", f"{AT}/consumer-offsets?consumer_id=1&partition_id=1", None, 200, OFFSET),
    ("DELETE", f"{AT}/consumer-offsets/1?partition_id=1", None, 204, None),
    ("POST", f"{AT}/consumer-groups", {"name": "g"}, 201, GROUP | {"members"}),
    ("GET", f"{AT}/consumer-groups", None, 200, GROUP),
    ("GET", f"{AT}/consumer-groups/g", None, 200, GROUP | {"members"}),
    ("DELETE", f"{AT}/consumer-groups/g", None, 204, None),
    ("DELETE", f"{AT}/partitions/1?segments_count=1", None, 204, None),
    ("DELETE", f"{AT}/purge", None, 204, None),
    ("DELETE", AT, None, 204, None),
    ("DELETE", "/streams/s/purge", None, 204, None),
    ("DELETE", "/streams/s", None, 204, None),
)
ERRORS: Final = {
    20: (404, None), 100: (404, "client_id"), 1009: (404, "stream_id"), 2010: (404, "topic_id"),
    3007: (404, "partition_id"), 3021: (404, None), 4000: (404, "segment_id"), 5000: (404, None), 5006: (404, None),
    40: (401, None), 78: (401, None), 41: (403, None), 42: (400, None), 3: (400, None), 46: (400, "username"),
    51: (400, "name"), 1012: (400, "name"), 1013: (400, "name"), 2013: (400, "name"), 2014: (400, "name"),
    5004: (400, "name"), 4100: (400, "offset"), 4028: (400, None), 2015: (400, None),
}  # fmt: skip
SIZES: Final = {
    0: "0 B", 999: "999 B", 1000: "1 KB", 10_240: "10 KiB", 1_234_567: "1234.567 KB", 3_211_776: "3136.5 KiB",
    2**60: "1 EiB",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpClient]:
    with HttpServer(tmp_path_factory.mktemp("http-reference") / "data") as server:
        yield server.root()


def test_every_endpoint_answers_as_the_reference_does(root: HttpClient) -> None:
    wrong = []
    for method, path, body, status, fields in CASES:
        answer = root.ask(method, path, body)
        found: Any = answer.json if answer.body else None
        items = found if isinstance(found, list) else [found]
        if answer.status != status or (fields is None) != (found is None) or not items:
            wrong.append(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
        elif fields is not None and any(set(each) != fields for each in items):
            wrong.append(f"{method} {path}: {sorted(set(items[0]) ^ fields)}")
    assert not wrong, "\n".join(wrong)


def test_messages_come_back_with_the_fields_of_the_reference(root: HttpClient) -> None:
    root.done("POST", "/streams", {"name": "m"})
    root.done("POST", "/streams/m/topics", {**NEW_TOPIC, "name": "t"})
    root.done("POST", "/streams/m/topics/t/messages", SENT)
    polled = root.get("/streams/m/topics/t/messages?partition_id=1&kind=first").json
    assert (polled["partition_id"], polled["current_offset"], polled["count"]) == (1, 1, 2)
    first, second = polled["messages"]
    assert set(first) == {"header", "payload", "user_headers"} and set(first["header"]) == HEADER
    assert (first["header"]["id"], first["payload"]) == (2**100, "aGVsbG8=")
    sent = SENT["messages"]
    assert isinstance(sent, list) and first["user_headers"] == sent[0]["user_headers"]
    assert set(second) == {"header", "payload"}, "a message without headers: 0.6 and 0.7 refuse an empty list"
    assert list(root.get("/stats").json) == STATS, "in the order of GET_STATS"


def test_the_rows_are_all_endpoints_of_the_reference(root: HttpClient) -> None:
    """What is served beside them is ours, or has no JSON."""
    rows = {(method, path.partition("?")[0]) for method, path, *_ in CASES}
    ours = {"/", "/ping", "/metrics", "/openapi.json", "/ui"}
    elsewhere = {
        "/snapshot", "/clients/{client}", "/users/logout", "/users/refresh-token", "/personal-access-tokens/login",
        "/streams/{stream}/topics/{topic}/events",
    }  # fmt: skip
    missing = []
    for endpoint in ENDPOINTS:
        parts = endpoint.path.split("/")
        known = any(
            method == endpoint.method
            and len(path.split("/")) == len(parts)
            and all(part.startswith("{") or part == said for part, said in zip(parts, path.split("/"), strict=True))
            for method, path in rows
        )
        shape = "/".join("{client}" if "clients" in endpoint.path and part.startswith("{") else part for part in parts)
        if not known and endpoint.path not in ours and shape not in elsewhere:
            missing.append(f"{endpoint.method} {endpoint.path}")
    assert not missing


@pytest.mark.parametrize("number", ERRORS)
def test_an_error_has_the_status_and_the_field_of_the_reference(number: int) -> None:
    answer = error_response(ShardError(Status(number), "why"))
    status, field = ERRORS[number]
    body = msgspec.json.decode(answer.body)
    assert (answer.status_code, body["id"], body["field"]) == (status, number, field)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_size_is_a_text_that_clients_of_the_reference_read(size_bytes: int) -> None:
    assert size_text(size_bytes) == SIZES[size_bytes]
