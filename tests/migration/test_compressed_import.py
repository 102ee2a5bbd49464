"""A data directory of Apache Iggy 0.8 whose topics become compressed: those that asked for it there (value 2), those
for which the server has a default, those that are given an algorithm later. Everything in it stays as it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.log.segment_layout import COMPRESSED
from shardd.log.segment_reader import layout_of, opened_log, segment_starts
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.runtime.password_hash import hash_password
from tests.migration import iggy_state as iggy
from tests.support import data_fixture, wire
from tests.support.data_fixture import FixtureCheck
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import Wire
from tests.unit.log_files import batch

CHECKS = 115  # what the reference itself passes
TIMEOUT_S = 120.0
GZIP = 2  # on the classic wire
SHOWN = " compression: 2, expected 1"  # whatever the algorithm is
SEGMENTS = 3
MESSAGES = 40  # of a segment
TOPICS = ("asked", "not", "fallen", "holes")  # the last two: timestamps that fall, an offset without a message
HOLE = 5  # offset


def payload(topic: int, offset: int) -> bytes:
    return b"%s/%d " % (TOPICS[topic].encode(), offset) + b"of which much is the same " * 20


def timestamp(topic: int, offset: int) -> int:
    falls = TOPICS[topic] == "fallen" and offset % 10 == 3
    return iggy.TIME_US + offset - 7 * falls


def offsets(topic: int) -> list[int]:
    return [each for each in range(SEGMENTS * MESSAGES) if TOPICS[topic] != "holes" or each != HOLE]


def iggy_directory(data: Path) -> Path:
    changes = [iggy.user(0, "iggy", password_hash=hash_password("iggy")), iggy.stream(0, "s")]
    changes += [
        iggy.topic(0, number, name, compression=GZIP if name == "asked" else 1) for number, name in enumerate(TOPICS)
    ]
    places = [(0, number, 0) for number in range(len(TOPICS))]
    iggy.directory(data, changes, places)
    for number in range(len(TOPICS)):
        partition = layout.partition_directory(data, 0, number, 0)
        there = offsets(number)
        for start in range(0, SEGMENTS * MESSAGES, MESSAGES):
            log, index = b"", b""
            for offset in (each for each in there if start <= each < start + MESSAGES):
                records, entries = batch(offset, [payload(number, offset)], timestamp(number, offset), start, len(log))
                log, index = log + records, index + entries
            layout.segment_log(partition, start).write_bytes(log)
            layout.segment_index(partition, start).write_bytes(index)
    return data


def until(server: Server, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.1)


def layouts(data: Path, topic: int) -> list[str]:
    partition = layout.partition_directory(data, 0, topic, 0)
    return [layout_of(partition, start).name for start in segment_starts(partition)]


def check(server: Server) -> None:
    """Every message at its offset, with its time and its bytes, by offset and by time."""
    with Wire(server.address) as root:
        root.login()
        for number, name in enumerate(TOPICS):
            found = root.read_all("s", name, 0)
            assert [each.offset for each in found] == offsets(number)
            assert [each.payload for each in found] == [payload(number, each.offset) for each in found]
            assert [each.timestamp_us for each in found] == [timestamp(number, each.offset) for each in found]
            if name != "fallen":
                moment = timestamp(number, 50)
                [by_time, *_] = root.poll("s", name, 0, strategy=wire.POLL_TIMESTAMP, value=moment).messages
                assert by_time.offset == 50


def settle(root: Wire, name: str, value: str) -> None:
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", name, (("compression", value),)).encode())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return iggy_directory(tmp_path / "data")


def test_a_topic_that_asked_for_gzip_there_is_compressed_here_and_reads_the_same(data: Path) -> None:
    plain = {path.name: path.read_bytes() for path in layout.partition_directory(data, 0, 0, 0).glob("*.log")}
    server = Server(data, ONE_SHARD)
    server.start()
    try:
        check(server)
        until(server, lambda: layouts(data, 0) == ["compressed"] * (SEGMENTS - 1) + ["plain"])
        check(server)
        with Wire(server.address) as root:
            root.login()
            assert layouts(data, 1) == ["plain"] * SEGMENTS
            for name in TOPICS[1:]:
                settle(root, name, "zstd:1")
        until(server, lambda: all(layouts(data, number)[0] == "compressed" for number in (1, 2)))
        until(server, lambda: layouts(data, 3)[1] == "compressed")
        check(server)
        server.kill_supervisor()
        server.start()
        check(server)
    finally:
        server.stop()
    for number in range(len(TOPICS)):
        partition = layout.partition_directory(data, 0, number, 0)
        for start in (each for each in segment_starts(partition) if layout_of(partition, each) is COMPRESSED):
            manifest = read_manifest(partition, start)
            assert manifest is not None and manifest.sealed is not None
            with opened_log(partition, start) as log, open(log, "rb", closefd=False) as file:
                content = file.read()
            assert xxhash.xxh3_128_digest(content) == manifest.sealed.digest
            if number == 0:
                assert content == plain[layout.segment_log(partition, start).name]
    for number in range(3):
        told = CliRunner().invoke(app, ["doctor", "log", str(data), "--topic", str(number)])
        assert told.exit_code == 0 and "damaged ranges 0" in told.output, told.output
    assert layouts(data, 3) == ["plain", "compressed", "plain"], "a segment with holes and no manifest is not sealed"


def test_the_recorded_directory_is_served_whole_when_all_of_it_becomes_compressed(tmp_path: Path) -> None:
    data = data_fixture.unpack(tmp_path)
    several = [
        path.parent
        for path in sorted(data.rglob("*.log"))
        if len(list(path.parent.glob("*.log"))) > 1 and path.stat().st_size and int(path.stem) == 0
    ]
    env = ONE_SHARD | {"SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": "zstd"}
    server = Server(data, env)
    for _ in range(2):
        server.start()
        try:
            until(server, lambda: all(list(each.glob("*.blocks")) for each in several))
            found = FixtureCheck(server.address)
            found.run()
            shown = [each for each in found.differences if each.endswith(SHOWN)]
            assert found.differences == shown and found.checks == CHECKS
            assert len(shown) == 5  # the sixth has asked for it there
        finally:
            server.stop()
    assert several
