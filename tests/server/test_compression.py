"""Compressed topics on a real server: what polls give is what it was, through restarts, kills, damage and deletion."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.log import layout
from shardd.protocol.account_requests import DeleteSegments
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.server import Server
from tests.support.top import shard_figures
from tests.support.wide import wide_but

SEGMENT_BYTES = 1 << 20
BATCH = 200
MESSAGES = 25 * BATCH
TIMEOUT_S = 90.0
SETTINGS = {"SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES)}


def payload(number: int) -> bytes:
    facts = {"number": number, "carrier": "UA", "origin": "EWR", "destination": "IAH", "delay": number % 37}
    return json.dumps(facts).encode() * 7


PAYLOADS = [payload(number) for number in range(MESSAGES)]
LARGE = b"".join(PAYLOADS[:3000])  # one message over many blocks


def fill(server: Server, payloads: list[bytes] = PAYLOADS, **settings: str) -> Path:
    with wire.connect(server.address) as connection:
        stream = connection.create_stream("s")
        topic = connection.create_topic(stream, "t", 1)
        change(connection, **settings)
        for first in range(0, len(payloads), BATCH):
            batch = [wire.message(each) for each in payloads[first : first + BATCH]]
            connection.send(stream, topic, wire.to_partition(0), batch)
    return layout.partition_directory(server.data_dir, stream, topic, 0)


def change(connection: wire.Wire, **settings: str) -> None:
    if settings:
        connection.request(
            ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", "t", tuple(settings.items())).encode()
        )


def read(server: Server, count: int = 1000) -> list[bytes]:
    with wire.connect(server.address) as connection:
        return [each.payload for each in connection.read_all("s", "t", 0, count=count)]


def until(server: Server, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def is_compressed(directory: Path) -> bool:
    """Every segment but the active one, and nothing plain is left of them."""
    logs, blocks = sorted(directory.glob("*.log")), sorted(directory.glob("*.blocks"))
    return len(logs) == 1 and len(blocks) > 1 and blocks[-1].stem < logs[0].stem


@pytest.mark.parametrize("algorithm", wide_but(["zstd"], ["gzip:1", "lz4", "zstd"]))
def test_polls_give_the_same_messages_through_a_stop_and_a_kill(tmp_path: Path, algorithm: str) -> None:
    server = Server(tmp_path / "data", SETTINGS)
    server.start()
    try:
        directory = fill(server, [*PAYLOADS, LARGE, *PAYLOADS], compression=algorithm)
        expected = [*PAYLOADS, LARGE, *PAYLOADS]
        until(server, lambda: is_compressed(directory))
        assert read(server) == expected
        for end in (server.stop, server.kill_supervisor):
            end()
            server.start()
            assert [read(server, count) for count in (97, 5000)] == [expected, expected]
    finally:
        server.stop()


def up_to_damage(connection: wire.Wire) -> list[wire.Message]:
    """In small polls: of one that meets the damage behind its first window the connection closes."""
    found: list[wire.Message] = []
    with contextlib.suppress(wire.StatusError):
        while part := connection.poll("s", "t", 0, value=len(found), count=20).messages:
            found += part
    return found


def test_a_damaged_block_costs_its_messages_and_deletion_takes_the_files(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SETTINGS | {"SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": "zstd"})
    server.start()
    try:
        directory = fill(server)
        until(server, lambda: is_compressed(directory))
        server.stop()
        path = sorted(directory.glob("*.blocks"))[0]
        content = bytearray(path.read_bytes())
        position = int.from_bytes(content[64 + 32 * 5 :][:8], "little")
        content[position + 20] ^= 0xFF
        path.write_bytes(content)
        server.start()
        with wire.connect(server.address) as connection:
            first = up_to_damage(connection)
            assert 0 < len(first) < 1000 and [each.payload for each in first] == PAYLOADS[: len(first)]
            behind = connection.poll("s", "t", 0, value=len(first) + 200, count=MESSAGES).messages
            assert [each.payload for each in behind] == PAYLOADS[len(first) + 200 : len(first) + 200 + len(behind)]
            assert len(behind) > 1000
            before = len(list(directory.glob("*.blocks")))
            connection.request(Code.DELETE_SEGMENTS, DeleteSegments("s", "t", 0, 1).encode())
            until(server, lambda: len(list(directory.glob("*.blocks"))) == before - 1)
            assert not (directory / path.name).exists()
    finally:
        server.stop()


def test_random_bytes_stay_plain_and_are_tried_once(tmp_path: Path) -> None:
    noise = random.Random(7)
    server = Server(tmp_path / "data", SETTINGS | {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"})
    server.start()
    try:
        directory = fill(server, [noise.randbytes(900) for _ in range(MESSAGES)], compression="lz4")
        sealed = len(list(directory.glob("*.log"))) - 1

        def figures() -> dict[str, int]:
            [row] = shard_figures(server.address)
            return {key: row[key] for key in ("compressing.left_plain", "jobs.compressing.runs")}

        until(server, lambda: figures()["compressing.left_plain"] == sealed)
        runs = figures()["jobs.compressing.runs"]
        until(server, lambda: figures()["jobs.compressing.runs"] > runs + 1)
        assert figures()["compressing.left_plain"] == sealed and not list(directory.glob("*.blocks*"))
    finally:
        server.stop()


def test_kills_beside_compressing_lose_nothing(tmp_path: Path) -> None:
    """The worker dies at moments all over the work; every start finds each message, and in the end one file for each
    segment."""
    slow = SETTINGS | {"SHARDD_SYSTEM_COMPRESSION_RATE": "4 MiB"}
    server = Server(tmp_path / "data", slow)
    server.start()
    directory = fill(server, compression="zstd:12")
    moments = random.Random(11)
    try:
        for _ in range(5):
            deadline = time.monotonic() + 15
            while not list(directory.glob("*.tmp")) and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(moments.random() * 0.3)
            server.kill_supervisor()
            server.start()
            assert read(server) == PAYLOADS
        until(server, lambda: is_compressed(directory))
        assert read(server) == PAYLOADS
    finally:
        server.stop()
