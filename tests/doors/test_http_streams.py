"""Streams and topics over HTTP: what is answered, and what to whom not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.doors.http_server import HttpClient, HttpServer
from tests.support.serving import Serving

NEVER = (1 << 64) - 1
SERVER: Final = Serving(HttpServer)


@pytest.fixture
def root(server: HttpServer) -> Iterator[HttpClient]:
    client = server.root()
    for stream in client.done("GET", "/streams"):
        client.done("DELETE", f"/streams/{stream['id']}")
    yield client
    client.close()


def test_the_life_of_a_stream(root: HttpClient) -> None:
    made = root.done("POST", "/streams", {"name": "orders", "unknown": 1})
    assert {**made, "created_at": 0} == {
        "id": 0, "created_at": 0, "name": "orders", "size": "0 B", "messages_count": 0, "topics_count": 0, "topics": [],
    }  # fmt: skip
    assert root.done("GET", "/streams") == [{name: value for name, value in made.items() if name != "topics"}]
    assert root.done("GET", "/streams/orders") == root.done("GET", "/streams/0") == made
    assert root.post("/streams", {"name": "orders"}).error == (400, 1012)
    assert root.post("/streams", {"name": "orders"}).json["field"] == "name"
    assert root.put("/streams/0", {"name": "sales"}).status == 204
    assert root.get("/streams/orders").error == (404, 404)
    assert root.delete("/streams/sales/purge").status == 204
    assert root.delete("/streams/sales").status == 204
    assert root.delete("/streams/sales").error == (404, 1009)


def test_topic_put_with_only_a_name_keeps_all_other_values(root: HttpClient) -> None:
    root.done("POST", "/streams", {"name": "s"})
    asked = {
        "name": "t", "partitions_count": 1, "compression_algorithm": "gzip", "message_expiry": NEVER,
        "max_topic_size": 1 << 40, "replication_factor": 3,
    }  # fmt: skip
    root.done("POST", "/streams/s/topics", asked)
    root.done("PUT", "/streams/s/topics/t", {"name": "renamed"})
    kept = {**asked, "name": "renamed"}
    assert kept.items() <= root.done("GET", "/streams/s/topics/renamed").items()
    root.done("PUT", "/streams/s/topics/renamed", {"name": "renamed", "message_expiry": 7_000_000})
    assert {**kept, "message_expiry": 7_000_000}.items() <= root.done("GET", "/streams/s/topics/renamed").items()


def test_the_life_of_a_topic(root: HttpClient) -> None:
    root.done("POST", "/streams", {"name": "s"})
    asked = {
        "name": "t", "partitions_count": 2, "compression_algorithm": "gzip", "message_expiry": 60_000_000,
        "max_topic_size": 1 << 40, "replication_factor": 3,
    }  # fmt: skip
    made = root.done("POST", "/streams/s/topics", asked)
    assert asked.items() <= made.items()
    assert [each["id"] for each in made["partitions"]] == [0, 1]
    assert made["partitions"][0].keys() == {
        "id", "created_at", "segments_count", "current_offset", "size", "messages_count",
    }  # fmt: skip
    topic = root.done("GET", "/streams/s/topics/t")
    assert {**topic, "partitions": 0} == {**made, "partitions": 0}
    [listed] = root.done("GET", "/streams/0/topics")
    assert listed == {name: value for name, value in made.items() if name != "partitions"}
    assert root.done("GET", "/streams/s")["topics"] == [listed]
    update = {"name": "u", "compression_algorithm": "none", "message_expiry": NEVER, "max_topic_size": NEVER}
    assert root.put("/streams/s/topics/t", update).status == 204
    assert root.done("GET", "/streams/s/topics/0")["message_expiry"] == NEVER
    assert root.post("/streams/s/topics/u/partitions", {"partitions_count": 3}).status == 201
    assert root.done("GET", "/streams/s/topics/u")["partitions_count"] == 5
    assert root.delete("/streams/s/topics/u/partitions?partitions_count=4").status == 204
    assert root.done("GET", "/streams/s/topics/u")["partitions_count"] == 1
    assert root.delete("/streams/s/topics/u/partitions/0?segments_count=1").status == 204
    assert root.delete("/streams/s/topics/u/purge").status == 204
    assert root.delete("/streams/s/topics/u").status == 204
    assert root.get("/streams/s/topics/u").error == (404, 404)


def test_what_is_not_there(root: HttpClient) -> None:
    root.done("POST", "/streams", {"name": "s"})
    topic = {"name": "t", "partitions_count": 1}
    assert root.done("GET", "/streams/s/topics") == []
    for method, path, body, error in (
        ("GET", "/streams/9", None, 404), ("GET", "/streams/s/topics/t", None, 404), ("PUT", "/streams/9", topic, 1009),
        ("GET", "/streams/9/topics", None, 404), ("POST", "/streams/9/topics", topic, 404),
        ("PUT", "/streams/s/topics/t", topic, 2010), ("DELETE", "/streams/s/topics/t", None, 2010),
        ("DELETE", "/streams/9/topics/t/purge", None, 1009), ("DELETE", "/streams/9/purge", None, 1009),
        ("POST", "/streams/s/topics/t/partitions", topic, 2010),
    ):  # fmt: skip
        assert root.ask(method, path, body).error == (404, error), (method, path)


def test_names_are_told_apart_before_they_are_decoded(root: HttpClient) -> None:
    for name, path in (
        ("a/b", "a%2Fb"), ("..", "%2E%2e"), ("?x", "%3fx"), ("ü 1", "%C3%BC%201"), ("1x", "1x"), ("a+b", "a+b"),
        ("%41", "%2541"), ("4294967296", "4294967296"), ("n" * 255, "n" * 255),
    ):  # fmt: skip
        root.done("POST", "/streams", {"name": name})
        assert root.done("GET", f"/streams/{path}")["name"] == name
    assert root.get("/streams/" + "n" * 256).error == (400, 6)
    assert root.get("/streams/%FF").status == 400
    assert root.get("/streams/a/b").status == 404
    assert root.get("/streams/").status == 404
    assert root.get("/streams//topics").status in (400, 404)


def test_numbers_that_cannot_be(root: HttpClient) -> None:
    root.done("POST", "/streams", {"name": "s"})
    topics = "/streams/s/topics"
    assert root.post(topics, {"name": "t", "partitions_count": 1001}).error == (400, 2015)
    assert root.post(topics, {"name": "t", "partitions_count": 1, "replication_factor": 0}).error == (400, 2018)
    assert root.post(topics, {"name": "", "partitions_count": 1}).status == 400
    assert root.post(topics, {"name": "t", "partitions_count": 1, "message_expiry": 1 << 64}).error == (400, 4)
    bodies: list[object] = [
        {"name": "t", "partitions_count": -1}, {"name": "t", "partitions_count": 1 << 32}, {"name": 1},
        {"name": "t", "partitions_count": "1"}, {"name": "t", "partitions_count": 1, "compression_algorithm": "zip"},
        {"name": "t", "partitions_count": 1, "message_expiry": 1e300}, [], 7, None,
    ]  # fmt: skip
    for body in bodies:
        assert root.post(topics, body if body is not None else b"null").status == 422, body
    assert root.delete(f"{topics}/t/partitions?partitions_count=x").status == 400
    assert root.delete(f"{topics}/t/partitions").status == 400
    assert root.delete(f"{topics}/t/partitions/x?segments_count=1").status == 400
    assert root.post(topics, b"[" * 100_000).status in (400, 422)
    assert root.post(topics, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}").status in (400, 422)
    assert root.post(topics, b'{"name":"\xff","partitions_count":1}').status in (400, 422)


def test_methods_that_are_not_served(root: HttpClient) -> None:
    for method, path in (("PATCH", "/streams"), ("POST", "/streams/s"), ("TRACE", "/streams"), ("DELETE", "/ping")):
        assert root.ask(method, path).status == 405


def test_too_few_rights(server: HttpServer, root: HttpClient) -> None:
    root.done("POST", "/streams", {"name": "s"})
    root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1})
    root.done("POST", "/users", {"username": "guest", "password": "secret"})
    guest = server.logged_in("guest", "secret")
    for method, path, body in (
        ("GET", "/streams", None), ("POST", "/streams", {"name": "x"}), ("GET", "/streams/s", None),
        ("PUT", "/streams/s", {"name": "x"}), ("DELETE", "/streams/s", None), ("DELETE", "/streams/s/purge", None),
        ("GET", "/streams/s/topics", None), ("GET", "/streams/s/topics/t", None),
        ("POST", "/streams/s/topics", {"name": "x", "partitions_count": 1}),
        ("DELETE", "/streams/s/topics/t", None), ("DELETE", "/streams/s/topics/t/purge", None),
        ("POST", "/streams/s/topics/t/partitions", {"partitions_count": 1}),
        ("DELETE", "/streams/s/topics/t/partitions?partitions_count=1", None),
        ("DELETE", "/streams/s/topics/t/partitions/0?segments_count=1", None),
    ):  # fmt: skip
        answer = guest.ask(method, path, body)
        assert answer.error == (403, 41), (method, path)
    assert root.done("GET", "/streams/s")["topics_count"] == 1


def test_a_body_that_is_too_large(root: HttpClient) -> None:
    assert root.post("/streams", {"name": "s", "x": "y" * 1_900_000}).status == 200
    answer = root.post("/streams", {"name": "s", "x": "y" * 2_100_000})
    assert answer.status == 413
    assert root.get("/ping").status == 200  # on a connection that was made again
