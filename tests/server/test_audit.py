"""Who has changed what: told for each change that a client makes, over TCP and over HTTP, in the log or in a file."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import msgspec

from shardd.protocol.codes import Code
from tests.doors.http_server import HttpServer
from tests.support import wire
from tests.support.server import Server

FORGED = "x\n2026-01-01T00:00:00.000Z INFO shard-0 user 0 ('iggy') at nowhere: DeleteUser"
SECRET = "a-password-to-be-kept"


def entries(file: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


def change_something(address: str) -> None:
    """Every family of commands; the password must be told nowhere."""
    with wire.connect(address) as root:
        root.create_stream("shop")
        root.create_topic("shop", "orders", 2)
        root.send("shop", "orders", wire.to_partition(0), [wire.message(SECRET.encode())])
        place = wire.identifier("shop") + wire.identifier("orders")
        root.request(Code.CREATE_CONSUMER_GROUP, place + wire.str8("billing"))
        root.request(Code.DELETE_CONSUMER_GROUP, place + wire.identifier("billing"))
        root.request(Code.DELETE_SEGMENTS, place + b"\0\0\0\0" + b"\1\0\0\0")
        root.request(Code.CREATE_USER, wire.str8("clerk") + wire.str8(SECRET) + b"\1\0")
        root.create_token("machine")
        root.purge_topic("shop", "orders")
        root.request(Code.DELETE_TOPIC, place)
        root.status(Code.DELETE_TOPIC, place)  # refused: nothing is changed


def test_a_file_has_one_object_for_each_change(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    env = {"SHARDD_SYSTEM_LOGGING_AUDIT_FILE": str(file)}
    with HttpServer(tmp_path / "data", env) as server:
        change_something(server.address)
        with wire.connect(server.address) as root:
            root.create_stream(FORGED)
        root_of_http = server.root()
        root_of_http.done("DELETE", "/users/clerk")
        root_of_http.close()
        found = entries(file)
        assert "shop" not in server.log(), "what is in the file is not in the log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    assert [each["action"] for each in found] == [
        "CreateStream", "CreateTopic", "CreateConsumerGroup", "DeleteConsumerGroup", "DeleteSegments", "CreateUser",
        "CreateToken", "PurgeTopic", "DeleteTopic", "CreateStream", "DeleteUser",
    ]  # fmt: skip
    assert {(each["user_id"], each["user"]) for each in found} == {(0, "iggy")}
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", each["address"]) for each in found)
    assert [each.get("door", "") for each in found] == [""] * 10 + ["http"]
    topic = {"stream": {"id": 0, "name": "shop"}, "topic": {"id": 0, "name": "orders"}}
    assert found[1]["values"] == {"name": "orders", "partitions_count": 2} and found[1]["made"] == 0
    assert found[3]["what"] == {**topic, "group": {"id": 0, "name": "billing"}}
    assert found[4]["values"] == {"partition": 0, "count": 1}
    assert found[8]["what"] == topic
    assert found[9]["values"] == {"name": FORGED}
    assert found[10]["what"] == {"user": {"id": 1, "name": "clerk"}} and set(found[10]) >= {"time", "source", "action"}


def test_without_a_file_a_line_of_the_log_is_a_change_and_cannot_be_forged(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        change_something(server.address)
        with wire.connect(server.address) as root:
            root.create_stream(FORGED)
        lines = [line for line in server.log().splitlines() if " user 0 ('iggy') at 127.0.0.1:" in line]
    assert len(lines) == 10 and SECRET not in server.log()
    assert lines[8].endswith(": DeleteTopic stream 0 ('shop') topic 0 ('orders')")
    assert "\\n2026-01-01" in lines[9] and not any(line.startswith("2026-01-01") for line in server.log().splitlines())


def test_a_file_that_is_moved_away_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    env = {"SHARDD_SYSTEM_LOGGING_AUDIT_FILE": str(file), "SHARDD_SYSTEM_LOGGING_LEVEL": "warn"}
    with Server(tmp_path / "data", env) as server, wire.connect(server.address) as root:
        root.create_stream("one")
        file.rename(tmp_path / "old.json")
        root.create_stream("two")
    assert [each["values"]["name"] for each in entries(tmp_path / "old.json")] == ["one"]
    assert [each["values"]["name"] for each in entries(file)] == ["two"]


def test_what_cannot_be_written_is_told_in_the_log(tmp_path: Path) -> None:
    """A link is not followed."""
    file, elsewhere = tmp_path / "audit.json", tmp_path / "elsewhere"
    elsewhere.touch()
    file.symlink_to(elsewhere)
    with Server(tmp_path / "data", {"SHARDD_SYSTEM_LOGGING_AUDIT_FILE": str(file)}) as server:
        with wire.connect(server.address) as root:
            root.create_stream("one")
            root.create_stream("two")
        log = server.log()
    assert elsewhere.read_bytes() == b""
    assert log.count("cannot be written") == 1 and log.count("CreateStream") == 2
