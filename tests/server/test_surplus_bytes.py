"""Bytes behind the end of a request are not looked at (docs/protocol/framing.md), in no dialect and by no way that a
request may take: who is a member of a group is answered, too."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from tests.support import wire
from tests.support.earlier_wire import RELEASES, EarlierWire
from tests.support.server import TWO_SHARDS, Server
from tests.support.serving import Serving
from tests.support.wire09 import RELEASE, Wire09

JOIN_GROUP, CREATE_GROUP = 604, 602
SURPLUS = (b"", b"\0", b"\xff\0\0\0\0", bytes(200))
ANSWER_S = 20.0  # below server.request_timeout, with which a request ends that nobody answers
PURGES = 10


def fill(server: Server) -> None:
    with wire.connect(server.address) as root:
        root.create_stream("s")


SERVER: Final = Serving(env=TWO_SHARDS, fill=fill)


def connected(address: str, release: str) -> wire.Wire:
    if release == RELEASE:
        connection: wire.Wire = Wire09(address, timeout_s=ANSWER_S)
    elif release:
        connection = EarlierWire(address, release, timeout_s=ANSWER_S)
    else:
        connection = wire.Wire(address, timeout_s=ANSWER_S)
    connection.login()
    return connection


def polled(connection: wire.Wire, topic: str, partition: int | None, surplus: bytes) -> list[bytes]:
    """As a member of the group "g"; the bytes are behind what each release writes."""
    place = wire.identifier("s") + wire.identifier(topic)
    body = b"\x02" + wire.identifier("g") + place
    flag, number = (0, 0) if partition is None else (1, partition)
    if isinstance(connection, EarlierWire) and not has_flag(connection):
        body += struct.pack("<I", number + flag)
    else:
        body += struct.pack("<BI", 1 if isinstance(connection, Wire09) else flag, number)
    body += struct.pack("<BQIB", 1, 0, 10, 0) + surplus
    if isinstance(connection, Wire09):
        status, answer = connection._ask(wire.POLL_MESSAGES, body)
        assert status == 0
        return [b"m"] * struct.unpack_from("<I", answer, 12)[0]
    answer = wire.Wire.request(connection, wire.POLL_MESSAGES, body)
    return [b"m"] * struct.unpack_from("<I", answer, 12)[0]


def has_flag(connection: EarlierWire) -> bool:
    return connection._generation.has(0, 8, 0)


@pytest.mark.parametrize("release", ["", RELEASE, *(each for each in RELEASES if each >= "0.4")])
def test_a_member_is_answered_whatever_is_behind_its_poll(server: Server, release: str) -> None:
    topic = f"of {release}"
    place = wire.identifier("s") + wire.identifier(topic)
    with wire.connect(server.address) as root, connected(server.address, release) as member:
        root.create_topic("s", topic, 2)
        root.request(CREATE_GROUP, place + wire.str8("g"))
        member.request(JOIN_GROUP, place + wire.identifier("g"))
        for purge in range(PURGES):
            for partition in (0, 1):
                root.send("s", topic, wire.to_partition(partition), [wire.message(b"m")] * 3)
            for surplus in SURPLUS:
                for partition in (0, 1):
                    assert polled(member, topic, partition, surplus) == [b"m"] * 3, (purge, surplus, partition)
            root.request(305, place)
