"""Purges while many connections poll. An answer comes whole, or the connection closes in the middle of it, because
what is left of it is gone; nothing of two histories is in one answer, and a consumer goes on over all of it."""

from __future__ import annotations

import os
import struct
import threading
from typing import Final

import pytest

from shardd.client import SyncClient, SyncConsumer, commands
from tests.support import wire
from tests.support.server import TWO_SHARDS, Server
from tests.support.serving import Serving

pytestmark = pytest.mark.io_engine

READERS: Final = 12
MESSAGES: Final = 400
PARTITION_NOT_FOUND: Final = 3007
ROUNDS: Final = int(os.environ.get("PURGE_ROUNDS", "5"))


def create_topic(server: Server) -> None:
    """The messages of the topic are in several files."""
    with SyncClient(f"shardd://iggy:iggy@{server.address}?connect_timeout=60&deadline=60") as client:
        client.create_stream("s")
        client.create_topic("s", "t", 1)
        client.call(commands.set_topic_settings("s", "t", {"segment_size": "1 MiB"}))


SERVER: Final = Serving(env=TWO_SHARDS, fill=create_topic)


def fill(writer: wire.Wire, number: int) -> None:
    """The messages of a history all have its number."""
    for _ in range(4):
        batch = [wire.message(struct.pack("<I", number) + bytes(5_000)) for _ in range(MESSAGES // 4)]
        writer.send("s", "t", wire.to_partition(0), batch)


def check(status: int, answer: bytes) -> int:
    """How many messages there are; all of one history."""
    assert status in (0, PARTITION_NOT_FOUND), status
    if status:
        return 0
    messages = wire.parse_polled(answer).messages
    assert [each.offset for each in messages] == list(range(len(messages)))
    assert len({each.payload[:4] for each in messages}) <= 1
    return len(messages)


def polling() -> bytes:
    place = wire.identifier("s") + wire.identifier("t") + wire.optional_partition(0)
    return wire.frame(wire.POLL_MESSAGES, wire.consumer(1) + place + struct.pack("<BQIB", 1, 0, MESSAGES, 0))


def connected(server: Server) -> wire.Wire:
    made = wire.Wire(server.address, receive_buffer_bytes=16_384)
    made.login()
    return made


def test_answer_over_a_purge_comes_whole_or_its_connection_closes(own_server: Server) -> None:
    readers = [connected(own_server) for _ in range(READERS)]
    whole = broken = 0
    with wire.connect(own_server.address) as writer:
        for number in range(3):
            fill(writer, number)
            heads = []
            for turn, reader in enumerate(readers):
                reader.send_bytes(polling())
                heads.append(reader.receive(8) if turn % 2 else b"")
            writer.purge_topic("s", "t")
            for turn, (reader, head) in enumerate(zip(readers, heads, strict=True)):
                try:
                    status, length = struct.unpack("<II", head or reader.receive(8))
                    check(status, reader.receive(length))
                    whole += 1
                except ConnectionError as error:
                    assert "bytes came" in str(error) and " 0 of 8 " not in str(error)
                    broken += 1
                    reader.close()
                    readers[turn] = connected(own_server)
    for reader in readers:
        reader.ping()
        reader.close()
    assert whole + broken == 3 * READERS


def test_consumers_go_on_over_purges_without_an_error(own_server: Server) -> None:
    """Each has what came after the last purge, and heard of the purges between."""
    failures: list[BaseException] = []
    last = struct.pack("<I", 2 * ROUNDS)

    def read(number: int) -> None:
        url = f"shardd://iggy:iggy@{own_server.address}?connect_timeout=60&deadline=60"
        histories, resets = [b""], 0

        def count(_reset: object) -> None:
            nonlocal resets
            resets += 1

        try:
            with (
                SyncClient(url) as client,
                SyncConsumer(client, "s", "t", name=f"r{number}", poll_interval_ms=20, when_reset=count) as consumer,
            ):
                found = 0
                while histories[-1] != last or found < MESSAGES:
                    message = consumer.get()
                    if message.payload[:4] != histories[-1]:
                        histories.append(message.payload[:4])
                        found = 0
                    found += 1
                    assert message.offset == found - 1
                assert resets >= len(histories) - 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    with wire.connect(own_server.address) as writer:
        for number in range(2 * ROUNDS):
            fill(writer, number)
            writer.purge_topic("s", "t")
        fill(writer, 2 * ROUNDS)
    for each in threads:
        each.join(240)
    assert not failures and not any(each.is_alive() for each in threads), failures
