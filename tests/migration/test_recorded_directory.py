"""The recorded data directory of the released Iggy 0.8.0 on a real server: everything in it is served."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.runtime.password_hash import hash_password
from tests.migration import iggy_state as iggy
from tests.support import clients, data_fixture, wire
from tests.support.data_fixture import FixtureCheck
from tests.support.server import Server
from tests.support.venvs import CLIENT_VERSIONS
from tests.support.wire import Wire, identifier, str8
from tests.unit.log_files import batch

CHECKS = 115  # what the reference itself passes
CREATE_USER = 33


def started(data: Path, shards: int) -> Server:
    return Server(data, {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(shards)})


def check(server: Server) -> None:
    found = FixtureCheck(server.address)
    found.run()
    assert found.differences == []
    assert found.checks == CHECKS


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """On one shard; only read from by the tests that share it."""
    data = data_fixture.unpack(tmp_path_factory.mktemp("recorded"))
    with started(data, 1) as server:
        yield server


def test_everything_is_served_at_the_first_start(imported: Server) -> None:
    check(imported)


def test_the_old_state_log_is_kept(imported: Server, tmp_path: Path) -> None:
    state = imported.data_dir / "state"
    original = data_fixture.unpack(tmp_path) / "state" / "log"
    assert not (state / "log").exists()
    assert (state / "log.imported").read_bytes() == original.read_bytes()
    assert json.loads((imported.data_dir / "info.json").read_text())["magic"] == "shardd-data"


def test_no_segment_was_written(imported: Server, tmp_path: Path) -> None:
    original = data_fixture.unpack(tmp_path)
    logs = sorted(path.relative_to(original) for path in original.rglob("*.log"))
    assert logs
    for path in logs:
        assert (imported.data_dir / path).read_bytes() == (original / path).read_bytes()


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_released_client_reads_it(imported: Server, version: str) -> None:
    script = Path(__file__).parent / "client_import.py"
    arguments = [clients.connection_string(imported.address), "logs", "app"]
    ((count, first, last),) = clients.run(version, script, arguments)
    assert (count, first.rstrip("."), last.rstrip(".")) == (1500, "logs/app/0/0", "logs/app/0/1499")


def test_checker_finds_a_difference(imported: Server) -> None:
    """The canary: a description that is wrong in one place."""
    content = data_fixture.description()
    content["groups"][0]["offsets"]["1"] = 21
    found = FixtureCheck(imported.address, content)
    found.run()
    assert len(found.differences) == 1
    assert "orders/events/1" in found.differences[0]


def test_two_shards_serve_it_and_go_on_behind_it(tmp_path: Path) -> None:
    server = started(data_fixture.unpack(tmp_path), 2)
    with server:
        check(server)
        with Wire(server.address) as client:
            client.login()
            client.send("logs", "app", wire.to_partition(0), [wire.message(b"new")])
            client.store_offset("logs", "app", 0, 1500, 9)
            (message,) = [each for each in client.read_all("logs", "app", 0) if each.payload == b"new"]
            assert message.offset == 1500
            # the highest id that is free comes first, as in Iggy after a restart
            assert client.create_stream("more") == 2
            assert client.create_topic("orders", "more", 1) == 2
            client.request(CREATE_USER, str8("fresh") + str8("fresh-secret") + b"\x01\x00")
            users = data_fixture.names(client.request(data_fixture.GET_USERS), 13)
            assert (4, "fresh") in users
    server.start()
    try:
        with Wire(server.address) as client:
            client.login()
            assert [each.offset for each in client.read_all("logs", "app", 0)] == list(range(1501))
            assert client.get_offset("logs", "app", 0, 9) == 1500
            who = b"\x02" + identifier("billing")
            request = who + identifier("orders") + identifier("events") + wire.optional_partition(2)
            assert struct.unpack_from("<Q", client.request(wire.GET_OFFSET, request), 12) == (61,)
    finally:
        server.stop()
    assert "imported" in server.log()
    assert server.log().count("imported the data directory") == 1


def test_messages_of_a_clock_that_went_back_are_served(tmp_path: Path) -> None:
    """Polls by time find what an index in the order of arrival can find; none fails, sends go on."""
    data = iggy.directory(
        tmp_path / "data",
        [iggy.user(0, "iggy", password_hash=hash_password("iggy")), iggy.stream(0, "s"), iggy.topic(0, 0, "t")],
        [(0, 0, 0)],
    )
    log, index = b"", b""
    for offset, timestamp in enumerate((50, 90, 40, 60, 20)):
        records, entries = batch(offset, [b"old"], timestamp, 0, len(log))
        log, index = log + records, index + entries
    partition = data / "streams/0/topics/0/partitions/0"
    (partition / f"{0:020d}.log").write_bytes(log)
    (partition / f"{0:020d}.index").write_bytes(index)
    server = started(data, 1)
    for start in range(2):
        with server, Wire(server.address) as client:
            client.login()
            client.send("s", "t", wire.to_partition(0), [wire.message(b"new")])
            assert [each.offset for each in client.read_all("s", "t", 0)] == list(range(6 + start))
            for moment in (0, 20, 45, 90, 91):
                found = client.poll("s", "t", 0, strategy=wire.POLL_TIMESTAMP, value=moment).messages
                assert found[-1].offset == 5 + start
