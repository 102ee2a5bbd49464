"""`shardd-liftbridge`: the server as existing deployments of Liftbridge start it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.state import Permissions
from tests.doors.liftbridge_server import LiftbridgeClient
from tests.migration import liftbridge_source as lb
from tests.migration.liftbridge_source import EPOCH_NS, Entry
from tests.support.liftbridge_launcher import LiftbridgeLauncher

NAMESPACE = "liftbridge-default"
WAIT_S = 60.0


def shardd(*arguments: str, address: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    if address:
        environment["SHARDD_URL"] = f"shardd://iggy:iggy@{address}"
    command = [sys.executable, "-m", "shardd", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=WAIT_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def launched(*arguments: str, status: int) -> str:
    """What a start that is refused says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    command = [sys.executable, "-m", "shardd.cli.liftbridge", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=WAIT_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeLauncher]:
    yaml = (
        "listen: {address}\nclustering:\n  server.id: node-7\n  namespace: ours\ntelemetry.enabled: true\n"
        "streams.retention.max.age: 48h\ngroups.consumer.timeout: 1m30s\n"
    )
    with LiftbridgeLauncher(tmp_path_factory.mktemp("launcher") / "data", yaml) as launcher:
        yield launcher


def test_settings_of_the_yaml_file_have_their_effect(server: LiftbridgeLauncher) -> None:
    with LiftbridgeClient(server.liftbridge) as client:
        (broker,) = client.call("FetchMetadata").brokers
        client.create("s")
        joined = client.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s"])
    assert (broker.id, f"{broker.host}:{broker.port}") == ("node-7", server.liftbridge)
    assert joined.consumerTimeout == 90 * 10**9
    topic = json.loads(shardd("topic", "get", "ours", "s", "--json", address=server.address).stdout)
    assert topic["message_expiry_us"] == 48 * 3_600_000_000
    assert "warning: telemetry.enabled has no effect here: nothing is reported to anybody" in server.log()


def test_clients_without_a_login_are_a_user_with_rights_for_these_streams_alone(server: LiftbridgeLauncher) -> None:
    state = load_state(server.data_dir / FILE_NAME)
    assert [user.name for _, user in sorted(state.users.items())] == ["iggy", "liftbridge"]
    permissions = state.users[state.user_ids["liftbridge"]].permissions
    assert permissions is not None and set(permissions.streams) == {state.stream_ids["ours"]}
    others = [name for name in Permissions.__struct_fields__ if name != "streams"]
    assert not any(getattr(permissions, name) for name in others)
    (mine,) = permissions.streams.values()
    assert not mine.manage_stream and mine.send_messages


def test_publishers_of_nats_need_no_other_server(server: LiftbridgeLauncher) -> None:
    with LiftbridgeClient(server.liftbridge) as client:
        client.create("nats", subject="plain.in")
        host, _, port = server.nats.rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_S) as connection:
            assert connection.recv(4096).startswith(b"INFO ")
            connection.sendall(b"CONNECT {}\r\nPUB plain.in 5\r\nhello\r\nPING\r\n")
            answer = b""
            while b"PONG" not in answer:
                answer += connection.recv(4096)
        (message,) = client.read("nats", 1)
    assert (message.value, message.subject) == (b"hello", "plain.in")


def test_an_imported_directory_is_served_with_its_offsets_and_cursors(tmp_path: Path) -> None:
    source = tmp_path / "source"
    entries = [
        Entry(n, b"%d" % n, b"key", {"h": b"v"}, "a.b", timestamp_ns=EPOCH_NS + n * 1_000_000) for n in (2, 5, 9)
    ]
    lb.write_stream(source, "gaps", {0: entries})
    lb.write_stream(source, "__cursors", {0: [lb.cursor("gaps", 0, "c", 5, 3)]})
    (source / "liftbridge").write_bytes(b"\x0a\x04old1")
    launcher = LiftbridgeLauncher(tmp_path / "data")
    shardd("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), "--with-default-root-credentials")
    with launcher, LiftbridgeClient(launcher.liftbridge) as client:
        found = client.read("gaps", 3)
        assert [(each.offset, each.value, each.key, each.headers["h"]) for each in found] == [
            (n, b"%d" % n, b"key", b"v") for n in (2, 5, 9)
        ]
        assert [each.timestamp // 1_000 for each in found] == [EPOCH_NS // 1_000 + n * 1_000 for n in (2, 5, 9)]
        assert client.call("FetchCursor", stream="gaps", partition=0, cursorId="c").offset == 5
        metadata = client.call("FetchMetadata")
        (stream,) = (each for each in metadata.streamMetadata if each.name == "gaps")
        assert (stream.subject, metadata.brokers[0].id) == ("a.b", "old1")
        assert client.partition("gaps").newestOffset == 9
        assert client.publish("gaps", b"next").offset == 10
        with client.subscribe("gaps", startPosition=1, startOffset=3, stopPosition=1, stopOffset=6) as part:
            assert [each.offset for each in part.messages(1)] == [5]
            assert part.end()[0] == "RESOURCE_EXHAUSTED"
        client.call("SetCursor", stream="gaps", partition=0, cursorId="c", offset=10)
        launcher.kill_supervisor()  # what was acknowledged is there, and the next start waits for the workers' end
    with launcher, LiftbridgeClient(launcher.liftbridge) as client:
        assert client.call("FetchCursor", stream="gaps", partition=0, cursorId="c").offset == 10
        assert [each.offset for each in client.read("gaps", 4)] == [2, 5, 9, 10]


def test_wrong_settings_and_directories_of_liftbridge_are_refused(tmp_path: Path) -> None:
    yaml = tmp_path / "wrong.yaml"
    yaml.write_text("listne: 127.0.0.1:1\nstreams.encryption: true\n")
    said = launched("-c", str(yaml), "-d", str(tmp_path / "data"), status=2)
    assert "listne: Liftbridge has no such setting; did you mean listen?" in said and "streams.encryption" in said
    assert not (tmp_path / "data").exists()
    lb.write_stream(tmp_path / "source", "s", {0: [Entry(0, b"")]})
    (tmp_path / "source/raft").mkdir()
    before = sorted(tmp_path.rglob("*"))
    said = launched("-d", str(tmp_path / "source"), status=1)
    assert "`shardd import liftbridge" in said and sorted(tmp_path.rglob("*")) == before


def test_flags_win_over_the_file_and_a_user_that_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    flags = ("-e", "-l", "info", "--id", "by-flag", "--ns", "other", "--raft-bootstrap-peers", "x")
    launcher = LiftbridgeLauncher(tmp_path / "data", "listen: {address}\nclustering.server.id: by-file\n", flags)
    with launcher, LiftbridgeClient(launcher.liftbridge) as client:
        assert client.call("FetchMetadata").brokers[0].id == "by-flag"
        assert "clustering.raft.bootstrap.peers has no effect here" in launcher.log()
        assert "other" in load_state(tmp_path / "data" / FILE_NAME).stream_ids
        shardd("user", "delete", "liftbridge", "--yes", address=launcher.address)
    with launcher, LiftbridgeClient(launcher.liftbridge) as client:
        assert "has no user liftbridge: clients need a login" in launcher.log()
        assert client.status("FetchMetadata")[0] == "UNAUTHENTICATED"
