"""The translating connections of the kill campaign (tests.support.earlier_wire, wire09) against a real server: what
each release writes and reads is what classic clients do."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from tests.crash.kill_load import CLIENTS, GROUP_KIND, Load
from tests.support import wire
from tests.support.earlier_wire import RELEASES, EarlierWire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.wire09 import RELEASE, Wire09


def fill(server: Server) -> None:
    with wire.Wire(server.address) as root:
        root.login()
        root.create_stream("s")


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_writes_and_reads_what_classic_clients_do(server: Server, release: str) -> None:
    with EarlierWire(server.address, release) as client:
        check(server, client, release)


def test_0_9_writes_and_reads_what_classic_clients_do(server: Server) -> None:
    with Wire09(server.address) as client:
        check(server, client, RELEASE)


def check(server: Server, client: wire.Wire, release: str) -> None:
    place = wire.identifier("s") + wire.identifier(release)
    with wire.Wire(server.address) as root:
        root.login()
        token = root.create_token(f"of {release}")
        client.login_with_token(token)
        root.create_topic("s", release, 2)
        root.request(602, place + wire.str8("g"))
        client.send("s", release, wire.to_partition(1), [wire.message(b"one"), wire.message(b"two" * 1000)])
        root.send("s", release, wire.to_partition(1), [wire.message(b"three")])
        assert [each.payload for each in root.read_all("s", release, 1)] == [b"one", b"two" * 1000, b"three"]
        polled = client.poll("s", release, 1, value=1)
        assert [(each.offset, each.payload) for each in polled.messages] == [(1, b"two" * 1000), (2, b"three")]
        assert polled.partition == 1 and client.poll("s", release, 0).messages == ()
        client.store_offset("s", release, 1, 1, "me")
        assert root.get_offset("s", release, 1, "me") == 1
        client.request(604, place + wire.identifier("g"))
        tail = wire.optional_partition(None) + struct.pack("<BQIB", wire.POLL_NEXT, 0, 10, 1)
        who = bytes([GROUP_KIND]) + wire.identifier("g")
        found = [
            each.offset
            for _ in range(4)
            for each in wire.parse_polled(client.request(wire.POLL_MESSAGES, who + place + tail)).messages
        ]
        assert found == [0, 1, 2]
        assert len(root.group_members("s", release, "g")) == 1


def test_the_load_of_the_kills_has_clients_of_every_release() -> None:
    load = Load(1)
    assert set(CLIENTS) == {"", RELEASE, *RELEASES}
    load.resume("127.0.0.1:1")  # nobody listens: threads try again until they are stopped
    load.stop()
    kinds = {(type(thread).__name__, thread.target.release) for thread in load.threads}
    for thread in load.threads:
        thread.finish()
    for kind, most in (("Producer", 6), ("Member", 4)):
        assert len({release for name, release in kinds if name == kind}) >= most, kind
    assert {name for name, release in kinds if release == RELEASE} >= {"Producer", "Member", "Consumer"}
