"""Compares a server that was started on the recorded data directory of Iggy 0.8.0 with the description of it.

`tests/golden/data/iggy-0.8.0-data.tar.xz` was written by the released server; `iggy-0.8.0-data.json` says what is in it
and by which rule each message was made. The check only reads.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import wire
from tests.support.archives import unpack_fixture
from tests.support.wire import Wire, identifier, str8

DATA = Path(__file__).parents[1] / "golden" / "data"
NEVER = (1 << 64) - 1
GET_USER, GET_USERS, GET_TOKENS, LOGIN_TOKEN, GET_GROUP = 31, 32, 41, 44, 600
INACTIVE = 47
READER = 4_000_000_000  # a consumer that stores nothing


def description() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / "iggy-0.8.0-data.json").read_text())
    return content


def unpack(parent: Path) -> Path:
    """A fresh copy of the directory below `parent`."""
    unpack_fixture(DATA / "iggy-0.8.0-data.tar.xz", parent)
    return parent / "iggy-0.8.0-data"


def path(place: dict[str, Any]) -> bytes:
    return identifier(place["stream"]) + identifier(place["topic"])


def expected_message(place: str, partition: int, offset: int, origin_us: int) -> tuple[bytes, bytes, bytes, int]:
    """(id, payload, user headers, origin timestamp) by the rules of the description."""
    payload = f"{place}/{partition}/{offset}".ljust(100, ".").encode()
    headers = b"\x02" + wire.str32("n") + b"\x0c" + struct.pack("<IQ", 8, offset) if offset % 3 == 0 else b""
    return (partition * 1_000_000 + offset + 1).to_bytes(16, "little"), payload, headers, origin_us


def names(data: bytes, length_at: int) -> list[tuple[int, str]]:
    """(id, name) of every entry of a list of streams, topics or users."""
    found, at = [], 0
    while at < len(data):
        end = at + length_at + 1 + data[at + length_at]
        found.append((int.from_bytes(data[at : at + 4], "little"), data[at + length_at + 1 : end].decode()))
        at = end
    return found


class FixtureCheck:
    """`checks` made, and one line for each of the `differences`."""

    def __init__(self, address: str, content: dict[str, Any] | None = None) -> None:
        self.checks = 0
        self.differences: list[str] = []
        self._address = address
        self._content = content or description()

    def run(self) -> None:
        with Wire(self._address) as root:
            root.login()
            self._streams(root)
            self._users(root)
            self._tokens()
            self._offsets(root)

    def _equal(self, what: str, found: object, *expected: object) -> None:
        self.checks += 1
        if found not in expected:
            self.differences.append(f"{what}: {repr(found)[:200]}, expected {repr(expected[0])[:200]}")

    def _streams(self, root: Wire) -> None:
        streams = self._content["streams"]
        self._equal(
            "streams", names(root.request(wire.GET_STREAMS), 32), [(each["id"], each["name"]) for each in streams]
        )
        for stream in streams:
            listed = names(root.request(wire.GET_TOPICS, identifier(stream["id"])), 50)
            self._equal(
                f"topics of {stream['name']}", listed, [(each["id"], each["name"]) for each in stream["topics"]]
            )
            for topic in stream["topics"]:
                self._topic(root, stream["name"], topic)

    def _topic(self, root: Wire, stream: str, topic: dict[str, Any]) -> None:
        what = f"{stream}/{topic['name']}"
        reply = root.request(wire.GET_TOPIC, identifier(stream) + identifier(topic["name"]))
        count, expiry, compression, size, replication = struct.unpack_from("<IQBQB", reply, 12)
        self._equal(f"{what} partitions", count, len(topic["partitions"]))
        self._equal(f"{what} compression", compression, topic["compression"])
        self._equal(f"{what} replication", replication, topic["replication_factor"] or 1)
        # the server default, 0, is shown as 2^64-1 or as it is
        self._equal(f"{what} expiry", expiry, topic["message_expiry"] or NEVER, topic["message_expiry"])
        self._equal(f"{what} size", size, topic["max_topic_size"] or NEVER, topic["max_topic_size"])
        for partition, found in zip(topic["partitions"], root.partitions(stream, topic["name"]), strict=True):
            name = f"{what}/{partition['id']}"
            self._equal(f"{name} segments", found.segments_count, partition["segments"])
            self._equal(f"{name} messages", found.messages_count, partition["messages"])
            self._equal(f"{name} current offset", found.current_offset, partition["last_offset"] or 0)
            self._messages(root, stream, topic["name"], partition)

    def _messages(self, root: Wire, stream: str, topic: str, partition: dict[str, Any]) -> None:
        found = list(self._read(root, stream, topic, partition["id"]))
        first, last = partition["first_offset"], partition["last_offset"]
        place = f"{stream}/{topic}"
        offsets = [] if first is None else list(range(first, last + 1))
        self._equal(f"{place} offsets", [message.offset for message in found], offsets)
        origin_us = self._content["rules"]["origin_timestamp"]
        wrong = [
            each.offset
            for each in found
            if (each.id, each.payload, each.headers, each.origin_timestamp_us)
            != expected_message(place, partition["id"], each.offset, origin_us)
        ]
        self._equal(f"{place} messages that break the rules", wrong, [])

    def _read(self, root: Wire, stream: str, topic: str, partition: int) -> Iterator[wire.Message]:
        kind, value = wire.POLL_FIRST, 0
        while True:
            request = b"".join((
                wire.consumer(READER), identifier(stream), identifier(topic), wire.optional_partition(partition),
                struct.pack("<BQIB", kind, value, 1000, 0),
            ))  # fmt: skip
            messages = wire.parse_polled(root.request(wire.POLL_MESSAGES, request)).messages
            if not messages:
                return
            yield from messages
            kind, value = wire.POLL_OFFSET, messages[-1].offset + 1

    def _users(self, root: Wire) -> None:
        users = self._content["users"]
        self._equal("users", names(root.request(GET_USERS), 13), [(user["id"], user["name"]) for user in users])
        for user in users:
            with Wire(self._address) as client:
                request = str8(user["name"]) + str8(user["password"]) + bytes(8)
                status = client.status(wire.LOGIN_USER, request)
            self._equal(f"login of {user['name']}", status, 0 if user["status"] == 1 else INACTIVE)
            reply = root.request(GET_USER, identifier(user["name"]))
            self._equal(f"status of {user['name']}", reply[12], user["status"])
            if not user.get("root"):
                block = None if user["permissions_hex"] is None else bytes.fromhex(user["permissions_hex"])
                rest = bytes(4) if block is None else b"\x01" + struct.pack("<I", len(block)) + block
                self._equal(f"permissions of {user['name']}", reply[14 + reply[13] :], rest)

    def _tokens(self) -> None:
        users = {user["name"]: user for user in self._content["users"]}
        for token in self._content["tokens"]:
            user = users[token["user"]]
            with Wire(self._address) as client:
                client.login(user["name"], user["password"])
                listed = client.request(GET_TOKENS)
                name = listed[1 : 1 + listed[0]].decode()
                (expires_at_us,) = struct.unpack_from("<Q", listed, 1 + listed[0])
                self._equal(f"tokens of {user['name']}", (name, len(listed)), (token["name"], 9 + len(token["name"])))
                self._equal(f"expiry of {name}", expires_at_us > time.time() * 1e6, token["expires"] != "never")
            with Wire(self._address) as client:
                answer = client.exchange(LOGIN_TOKEN, str8(token["token"]))
                self._equal(f"login with {name}", answer, (0, struct.pack("<I", user["id"])))

    def _offsets(self, root: Wire) -> None:
        for group in self._content["groups"]:
            reply = root.request(GET_GROUP, path(group) + identifier(group["name"]))
            number, partitions, members = struct.unpack_from("<III", reply)
            self._equal(f"group {group['name']}", (number, members), (group["id"], 0))
            for partition in range(partitions):
                who = b"\x02" + identifier(group["name"])
                self._stored(root, who, group, partition, group["offsets"].get(str(partition)))
        for item in self._content["consumer_offsets"]:
            self._stored(root, wire.consumer(item["consumer"]), item, item["partition"], item["offset"])

    def _stored(self, root: Wire, who: bytes, place: dict[str, Any], partition: int, offset: int | None) -> None:
        reply = root.request(wire.GET_OFFSET, who + path(place) + wire.optional_partition(partition))
        found = struct.unpack_from("<Q", reply, 12)[0] if reply else None
        self._equal(f"stored offset {place['stream']}/{place['topic']}/{partition}", found, offset)
