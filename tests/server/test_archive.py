"""Archive before deletion on a real server: segments wait in the spool for their ACK, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import layout, spool
from shardd.log.spool import Acknowledgement, SpoolManifest
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.server.test_retention import (
    ENV,
    HOUR_US,
    RECORD_BYTES,
    SECOND_US,
    SEGMENT_BYTES,
    after_runs,
    create_topic,
    logs,
    offsets,
    send,
    until,
    update_topic,
)
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.top import shard_figures
from tests.support.wire import Wire

SERVER: Final = Serving(env=ENV)


@pytest.fixture
def root(own_server: Server) -> Iterator[Wire]:
    with wire.connect(own_server.address) as connection:
        connection.create_stream("s")
        yield connection


def settings(root: Wire, **values: str) -> None:
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", "t", tuple(values.items())).encode())


def entries(data: Path) -> list[tuple[Path, SpoolManifest]]:
    found = []
    for path in spool.entries(spool.spool_directory(data)):
        with contextlib.suppress(FileNotFoundError):  # acknowledged, and removed between two looks
            found.append((path, spool.read_entry(path)))
    return found


def covered(data: Path) -> list[int]:
    return [offset for _, each in entries(data) for offset in range(each.start, each.end)]


def figure(server: Server, name: str) -> int:
    return sum(row.get(f"archive.{name}", 0) for row in shard_figures(server.address))


def acknowledge(entry: Path, manifest: SpoolManifest) -> None:
    spool.acknowledge(entry, Acknowledgement(manifest.digest, manifest.records, "test"))


def payloads_of(entry: Path, manifest: SpoolManifest) -> int:
    data = (entry / manifest.file).read_bytes()
    assert len(data) == manifest.log_bytes == manifest.records * RECORD_BYTES
    offsets = [struct.unpack_from("<Q", data, at + 24)[0] for at in range(0, len(data), RECORD_BYTES)]
    assert offsets == list(range(manifest.start, manifest.end))
    return len(offsets)


def test_an_expired_segment_is_deleted_when_its_ack_is_there_and_not_before(own_server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=2 * SECOND_US)
    settings(root, archive="required")
    send(root, 30)
    data = own_server.data_dir
    until(lambda: covered(data) == list(range(30)), own_server)
    assert offsets(root) == []
    assert logs(own_server, root) == [30]
    after_runs(own_server)
    for entry, manifest in entries(data):
        assert payloads_of(entry, manifest) == manifest.records
        assert (manifest.stream.name, manifest.topic.name, manifest.archive) == ("s", "t", "required")
        spool.verify(entry, manifest)
    first, *rest = entries(data)
    spool.acknowledge(first[0], Acknowledgement("0" * 32, first[1].records, "of another one"))
    acknowledge(*rest[0])
    until(lambda: not rest[0][0].exists(), own_server)
    assert first[0].exists(), "an ACK of another segment counts for nothing"
    for entry, manifest in entries(data):
        acknowledge(entry, manifest)
    until(lambda: entries(data) == [] and not any(spool.spool_directory(data).iterdir()), own_server)
    assert figure(own_server, "acknowledged") == len(rest) + 1


def test_segments_that_a_size_or_a_client_removes_wait_too(own_server: Server, root: Wire) -> None:
    create_topic(root, size_bytes=5 * SEGMENT_BYTES)
    settings(root, archive="best_effort")
    send(root, 100)
    until(lambda: covered(own_server.data_dir)[:10] == list(range(10)), own_server)
    until(lambda: logs(own_server, root)[0] == offsets(root)[0] == len(covered(own_server.data_dir)), own_server)
    place = wire.identifier("s") + wire.identifier("t")
    root.request(Code.DELETE_SEGMENTS, place + struct.pack("<II", 0, 1))
    until(lambda: len(covered(own_server.data_dir)) == offsets(root)[0], own_server)
    assert covered(own_server.data_dir) == list(range(offsets(root)[0]))


def test_a_plain_directory_takes_segments_and_what_it_has_is_deleted(tmp_path: Path) -> None:
    target, data = tmp_path / "archive", tmp_path / "data"
    env = ENV | {"SHARDD_SYSTEM_ARCHIVE_DIRECTORY": str(target)}
    with Server(data, env=env) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, partitions=2, expiry_us=2 * SECOND_US)
        settings(root, archive="required", compression="lz4")
        for partition in range(2):
            send(root, 30, partition)

        def archived() -> list[tuple[int, int]]:
            found = [spool.read_entry(path) for path in spool.entries(target)]
            return sorted((each.partition, offset) for each in found for offset in range(each.start, each.end))

        until(lambda: archived() == [(partition, offset) for partition in range(2) for offset in range(30)], server)
        until(lambda: entries(data) == [], server)
        for path in spool.entries(target):
            spool.verify(path, spool.read_entry(path))
        assert figure(server, "archived") == figure(server, "acknowledged") == len(list(spool.entries(target)))


def test_above_its_bound_best_effort_goes_and_required_stays_with_an_alarm(tmp_path: Path) -> None:
    env = ENV | {"SHARDD_SYSTEM_ARCHIVE_SPOOL_MAX": "30 KiB"}
    with Server(tmp_path / "data", env=env) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, expiry_us=SECOND_US)
        settings(root, archive="best_effort")
        send(root, 60)
        until(lambda: covered(server.data_dir)[-1:] == [59] and figure(server, "dropped") > 0, server)
        until(lambda: figure(server, "incoming") == 0 and 0 < figure(server, "spool_bytes") <= 30 << 10, server)
        assert "are deleted without an archive" in server.log()
        last = covered(server.data_dir)
        assert last == list(range(last[0], 60))
        settings(root, archive="required")
        send(root, 60)
        until(lambda: figure(server, "above_max") == 1, server)
        everything = [*last, *range(60, 120)]  # what came there under `best_effort` is required by now, too
        until(lambda: covered(server.data_dir) == everything, server)
        assert "more than system.archive.spool_max" in server.log()
        after_runs(server)
        assert covered(server.data_dir) == everything
        doctor = CliRunner().invoke(app, ["doctor", "--data", str(server.data_dir), "--json"], env=env)
        [finding] = [each for each in msgspec.json.decode(doctor.stdout) if each["check"] == "archive"]
        assert finding["level"] == "warning" and "wait for their archive" in finding["finding"]


def test_a_kill_at_any_moment_loses_no_segment(tmp_path: Path) -> None:
    """Each message is in the log, on its way, or in the spool, once the server is up again."""
    server = Server(tmp_path / "data", env=ENV)
    server.start()
    try:
        sent = 0
        for pause_s in (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0):
            with wire.connect(server.address) as root:
                if sent == 0:
                    root.create_stream("s")
                    create_topic(root, expiry_us=SECOND_US)
                    settings(root, archive="required")
                send(root, 40)
                sent += 40
            time.sleep(1 + pause_s)
            server.kill_supervisor()
            server.start()
        until(lambda: covered(server.data_dir) == list(range(sent)), server)
        for entry, manifest in entries(server.data_dir):
            payloads_of(entry, manifest)
        assert list(layout.incoming_directory(server.data_dir).iterdir()) == []
    finally:
        server.stop()


def test_what_a_crash_has_left_between_two_steps_becomes_an_entry(tmp_path: Path) -> None:
    """A segment of which only the log has left its directory, and one that was being put together."""
    server = Server(tmp_path / "data", env=ENV)
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, expiry_us=HOUR_US)
            settings(root, archive="required")
            send(root, 40)
            until(lambda: not any(row["sealing.waiting"] for row in shard_figures(server.address)), server)
            first, second = logs(server, root)[:2]
            home = layout.partition_directory(server.data_dir, root.streams()["s"], 0, 0)
            update_topic(root, expiry_us=HOUR_US)
        server.stop()
        incarnation = layout_incarnation(home)
        directory = layout.incoming_directory(server.data_dir)
        prefix = Path(spool.incoming_prefix(server.data_dir, (0, 0, 0), incarnation)).name
        layout.segment_log(home, first).rename(directory / f"{prefix}-{first:020}.log")
        building = directory / f"{prefix}-{second:020}.log.building"
        building.mkdir()
        for suffix in ("log", "index"):
            layout.segment_file(home, second, suffix).rename(building / f"{second:020}.{suffix}")
        server.start()
        until(lambda: [each.start for _, each in entries(server.data_dir)] == [first, second], server)
        for entry, manifest in entries(server.data_dir):
            payloads_of(entry, manifest)
            assert msgspec.json.decode((entry / spool.MANIFEST).read_bytes())["version"] == spool.VERSION
    finally:
        server.stop()


def layout_incarnation(directory: Path) -> int:
    return int(struct.unpack("<8sQ", (directory / layout.INCARNATION).read_bytes())[1])


def test_what_is_on_its_way_goes_with_its_topic(own_server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=SECOND_US)
    settings(root, archive="required")
    send(root, 30)
    until(lambda: len(covered(own_server.data_dir)) == 30, own_server)
    entry, manifest = entries(own_server.data_dir)[0]
    stray = spool.incoming_prefix(own_server.data_dir, (0, 0, 0), manifest.incarnation)
    root.purge_topic("s", "t")
    Path(f"{stray}-{manifest.start:020}.log").write_bytes((entry / manifest.file).read_bytes())
    until(lambda: list(layout.incoming_directory(own_server.data_dir).iterdir()) == [], own_server)
    assert len(covered(own_server.data_dir)) == 30, "what is in the spool stays for its archive"


def test_a_damaged_required_segment_holds_up_its_partition_until_somebody_gives_it_up(tmp_path: Path) -> None:
    """Neither it nor one behind it is deleted; log, figures and doctor tell; with its directory away they go on."""
    server = Server(tmp_path / "data", env=ENV)
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, expiry_us=HOUR_US)
            settings(root, archive="required")
            send(root, 40)
            first, second = logs(server, root)[:2]
        server.stop()
        log = layout.segment_log(layout.partition_directory(server.data_dir, 0, 0, 0), second)
        content = bytearray(log.read_bytes())
        content[RECORD_BYTES + 100] ^= 1
        log.write_bytes(content)
        layout.segment_file(log.parent, second, "manifest").unlink()  # as if it had not been sealed yet
        server.start()
        with wire.connect(server.address) as root:
            update_topic(root, expiry_us=SECOND_US)
            until(lambda: [each.start for _, each in entries(server.data_dir)] == [first], server)
            until(lambda: "cannot be archived" in server.log(), server)
            until(lambda: logs(server, root) == [40], server)
            assert [each.start for _, each in entries(server.data_dir)] == [first]
            held = spool.held(server.data_dir)
            assert held is not None and f"{second:020}" in held.name

            def told() -> bool:
                doctor = CliRunner().invoke(app, ["doctor", "--data", str(server.data_dir), "--json"], env=ENV)
                found = [each for each in msgspec.json.decode(doctor.stdout) if each["check"] == "archive"]
                return [each["level"] for each in found] == ["warning"] and f"{held} holds" in found[0]["finding"]

            until(told, server)
            held.rename(tmp_path / "given up")
            until(lambda: covered(server.data_dir)[-1:] == [39], server)
            assert second not in covered(server.data_dir) and first in covered(server.data_dir)
    finally:
        server.stop()
