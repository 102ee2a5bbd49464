"""Golden data directories: `tests/golden/directories/<version>/data.tar.xz` and what a reader must see in each.

`describe` asks a running server for everything a client can see; `make_directory.py` records it, the test compares.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from shardd.protocol import topic_settings
from shardd.protocol.extensions import ExtensionCode
from tests.support import wire
from tests.support.archives import unpack_fixture
from tests.support.wire import Wire, identifier, str8

ROOT = Path(__file__).parents[1] / "golden" / "directories"
PASSWORDS = {"iggy": "iggy", "alice": "golden alice", "bob": "golden bob"}  # of this test only
CONSUMERS = (1, 7, "reader")  # whose offsets are looked for in every partition
GET_USERS, GET_TOKENS, LOGIN_TOKEN, GET_GROUPS, GET_GROUP, JOIN_GROUP = 32, 41, 44, 601, 600, 604
GET_USER = 31


def versions() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("*/data.tar.xz"))


def description(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / version / "description.json").read_text())
    return content


def unpack(version: str, parent: Path) -> Path:
    """A fresh copy of the directory below `parent`."""
    unpack_fixture(ROOT / version / "data.tar.xz", parent)
    return parent / "data"


def place_of(stream: str, topic: str) -> bytes:
    return identifier(stream) + identifier(topic)


def describe(address: str, tokens: dict[str, str]) -> dict[str, Any]:
    """Everything that clients see: streams, topics, messages, offsets, groups, users, tokens, logins."""
    root = wire.connect(address)
    with root:
        streams = {name: _stream(root, name) for name in sorted(root.streams())}
        users = root.request(GET_USERS)
        found = {
            "streams": streams,
            "users": users.hex(),
            "permissions": {name: root.request(GET_USER, identifier(name)).hex() for name in ("alice", "bob")},
        }
    found["logins"] = {name: _login(address, name, password) for name, password in PASSWORDS.items()}
    found["tokens"] = {name: _token_login(address, secret) for name, secret in tokens.items()}
    return found


def settings(address: str) -> dict[str, str]:
    """The settings that topics have of their own, as "stream/topic/key"."""
    found: dict[str, str] = {}
    with wire.connect(address) as root:
        for stream in root.streams():
            for topic in _stream(root, stream)["topics"]:
                answer = root.request(ExtensionCode.GET_TOPIC_SETTINGS, place_of(stream, topic))
                own = [each for each in topic_settings.decode_reply(answer) if each.is_set]
                found |= {f"{stream}/{topic}/{each.key}": each.value for each in own}
    return found


def _stream(root: Wire, stream: str) -> dict[str, Any]:
    reply = root.request(wire.GET_STREAM, identifier(stream))
    topics: dict[str, Any] = {}
    at = 33 + reply[32]
    while at < len(reply):
        name = reply[at + 51 : at + 51 + reply[at + 50]].decode()
        topics[name] = _topic(root, stream, name)
        at += 51 + reply[at + 50]
    return {"reply": reply.hex(), "topics": topics}


def _topic(root: Wire, stream: str, topic: str) -> dict[str, Any]:
    place = place_of(stream, topic)
    return {
        "reply": root.request(wire.GET_TOPIC, place).hex(),
        "groups": root.request(GET_GROUPS, place).hex(),
        "partitions": [_partition(root, stream, topic, each.id) for each in root.partitions(stream, topic)],
    }


def _partition(root: Wire, stream: str, topic: str, partition: int) -> dict[str, Any]:
    messages = root.read_all(stream, topic, partition)
    return {
        "first": messages[0].offset if messages else None,
        "messages": len(messages),
        "sha256": hashlib.sha256(b"".join(each.raw for each in messages)).hexdigest(),
        "newest": messages[-1].payload.decode(errors="replace")[:40] if messages else None,
        "offsets": {str(who): root.get_offset(stream, topic, partition, who) for who in CONSUMERS},
        "group_offset": _group_offset(root, stream, topic, partition),
    }


def _group_offset(root: Wire, stream: str, topic: str, partition: int) -> int | None:
    reader = b"\x02" + identifier("workers") + place_of(stream, topic) + wire.optional_partition(partition)
    status, answer = root.exchange(wire.GET_OFFSET, reader)
    return struct.unpack_from("<Q", answer, 12)[0] if status == 0 and answer else None


def _login(address: str, name: str, password: str) -> list[int]:
    """Statuses of the login with the right and with a wrong password."""
    statuses = []
    for each in (password, password + "x"):
        with Wire(address) as connection:
            statuses.append(connection.status(wire.LOGIN_USER, str8(name) + str8(each) + bytes(8)))
    return statuses


def _token_login(address: str, secret: str) -> dict[str, Any]:
    """Status of the login, and the tokens of that user."""
    with Wire(address) as connection:
        status = connection.status(LOGIN_TOKEN, str8(secret))
        return {"status": status, "listed": connection.request(GET_TOKENS).hex() if status == 0 else ""}
