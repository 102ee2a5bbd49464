"""Backups beside a real server under load: what was acknowledged before one began is in it, whoever is killed."""

from __future__ import annotations

import contextlib
import random
import secrets
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from shardd.backup.backups_directory import complete_backups
from shardd.backup.format import BackupError, read_backup
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.cli.main import app
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, Identity, identity_of
from tests.support.server import Server

PARTITIONS = 4
DELETE_SEGMENTS = 503
STORE_OFFSET = 5
CHURN_PAUSE_S = 0.05
SETTINGS = {"SHARDD_SYSTEM_SEGMENT_SIZE": "32 KiB", "SHARDD_SYSTEM_PARTITION_ACK": "durable"}
TIMEOUT_S = 60.0
# The imports come first, so that a kill falls into the backup itself.
CHILD = """
import sys
from pathlib import Path
from typing import NamedTuple
from shardd.backup.create import create_backup
print("ready", flush=True)
create_backup(Path(sys.argv[1]), Path(sys.argv[2]))
"""


CHOSEN = (  # of one topic after the other
    (("compression", "zstd"),),
    (("archive", "best_effort"), ("compression", "lz4")),
    (("partition_messages_max", "60"),),
    (),
)


class Churn(threading.Thread):
    """Topics that come, are filled, compressed, archived, trimmed, lose their oldest segments, are purged and go."""

    def __init__(self, address: str) -> None:
        super().__init__(name="churn", daemon=True)
        self.address = address
        self.stopping = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        with contextlib.suppress(OSError, wire.StatusError), wire.connect(self.address) as connection:
            stream = connection.create_stream("churn")
            while not self.stopping.is_set():
                topic = connection.create_topic(stream, f"t{self.rounds}", 2)
                if chosen := CHOSEN[self.rounds % len(CHOSEN)]:
                    request = SetTopicSettings(stream, topic, chosen)
                    connection.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())
                for _ in range(30):
                    batch = [wire.message(bytes(1000)) for _ in range(8)]
                    connection.send(stream, topic, wire.to_partition(0), batch)
                segments = wire.identifier(stream) + wire.identifier(topic) + struct.pack("<II", 0, 3)
                connection.request(DELETE_SEGMENTS, segments)
                connection.purge_topic(stream, topic)
                connection.send(stream, topic, wire.to_partition(0), [wire.message(b"after")])
                if self.rounds >= 2:
                    connection.request(303, wire.identifier(stream) + wire.identifier(f"t{self.rounds - 2}"))
                self.rounds += 1
                self.stopping.wait(CHURN_PAUSE_S)

    def finish(self) -> None:
        self.stopping.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()


class Scene:
    """A server under load, and the backups of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data, self.backups = root / "data", root / "backups"
        self.server = Server(self.data, SETTINGS)
        self.server.start()
        with wire.connect(self.server.address) as connection:
            connection.create_topic(connection.create_stream("load"), "load", PARTITIONS)
            compressed = SetTopicSettings("load", "load", (("compression", "zstd"),))
            connection.request(ExtensionCode.SET_TOPIC_SETTINGS, compressed.encode())
        target = load.Target(self.server.address, "load", "load", batch_count=5, payload_size_bytes=400)
        self.history = History()
        self.producers = [load.Producer(target, self.history, n, n, pause_s=0.01) for n in range(PARTITIONS)]
        self.churn = Churn(self.server.address)
        for thread in [*self.producers, self.churn]:
            thread.start()

    def close(self) -> None:
        for producer in self.producers:
            producer.stopping.set()
        self.churn.finish()
        for producer in self.producers:
            producer.finish()
        self.server.stop()

    def begin(self) -> subprocess.Popen[str]:
        """A backup in a process of its own, at its first step."""
        command = [sys.executable, "-c", CHILD, str(self.data), str(self.backups)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def complete(self) -> tuple[Path, float]:
        """A whole backup and how long it took."""
        child = self.begin()
        began = time.monotonic()
        _, errors = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == 0, errors
        return complete_backups(self.backups)[-1], time.monotonic() - began

    @staticmethod
    def messages_before(
        partitions: dict[int, list[wire.Message]], acknowledged: frozenset[Identity]
    ) -> dict[int, list[wire.Message]]:
        """Each partition up to the last message that was acknowledged then."""
        ends = {
            place: max(number for number, each in enumerate(messages) if identity_of(each.payload) in acknowledged)
            for place, messages in partitions.items()
        }
        return {place: messages[: ends[place] + 1] for place, messages in partitions.items()}

    def restored(self, backup: Path, name: str) -> dict[int, list[wire.Message]]:
        """What a server says that was started on a backup."""
        restore_backup(backup, self.root / name)
        with Server(self.root / name, SETTINGS) as server:
            assert " WARNING " not in server.log(), server.log()
            with wire.connect(server.address) as connection:
                connection.send("load", "load", wire.to_partition(0), [wire.message(b"goes on")])
            partitions = load.read_partitions(load.Target(server.address, "load", "load"), range(PARTITIONS))
            assert partitions[0].pop().payload == b"goes on"
            return partitions


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kills", [3, pytest.param(150, marks=pytest.mark.slow)])
def test_kills_leave_nothing_that_looks_complete_and_nothing_is_missing(scene: Scene, kills: int) -> None:
    """Backups are killed at any moment, then the server during the last one, which is restored and served."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    faults.wait_until(lambda: scene.history.acknowledged_count() > 500 and scene.churn.rounds > 0, "load")
    first, took_s = scene.complete()
    checked = {first: verify_backup(first).damage}
    killed, longest_s = 0, took_s
    for _ in range(5 * kills):
        if killed == kills:
            break
        child = scene.begin()
        time.sleep(dice.random() * longest_s)
        child.kill()
        child.communicate(timeout=TIMEOUT_S)
        if child.returncode != 0:
            killed += 1
        else:  # the machine was faster than at the first time
            longest_s = max(0.7 * longest_s, 0.01)
        for path in complete_backups(scene.backups):
            if path not in checked:
                checked[path] = verify_backup(path).damage
        for path in scene.backups.glob("*.incomplete"):
            with pytest.raises(BackupError):
                read_backup(path)
    assert killed == kills
    scene.complete()
    assert not [*scene.backups.glob("*.incomplete")], "the next run has removed what they left"
    before = scene.history.acknowledged()
    child = scene.begin()
    time.sleep(dice.random() * took_s)
    faults.wait_until(lambda: scene.history.acknowledged_count() > len(before), "something comes later")
    scene.server.kill_supervisor()
    _, errors = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0, errors
    last = complete_backups(scene.backups)[-1]
    checked[last] = verify_backup(last).damage
    assert not any(checked.values()), checked
    assert read_backup(last).left_out == []
    for producer in scene.producers:
        producer.finish()
    partitions = scene.restored(last, "restored")
    scene.history.as_of(before).judge(partitions).require_clean()
    short = {place: messages[:-1] for place, messages in scene.messages_before(partitions, before).items()}
    assert "lost" in scene.history.as_of(before).judge(short).kinds(), "the check can fail"
    print(f"{killed} killed, {len(before)} messages before the last backup, {scene.churn.rounds} topics")


def test_a_restored_server_has_what_files_and_journals_held(tmp_path: Path) -> None:
    """Through the commands: messages in journals of level `memory`, stored offsets, users."""
    settings = {"SHARDD_SYSTEM_PARTITION_ACK": "memory"}
    target = tmp_path / "restored"
    create = ["create", str(tmp_path / "b"), "--data", str(tmp_path / "data"), "--json", "--flush"]
    with Server(tmp_path / "data", settings) as server, wire.connect(server.address) as connection:
        stream = connection.create_stream("s")
        connection.create_topic(stream, "t", 2)
        connection.send(stream, "t", wire.to_partition(1), [wire.message(b"x") for _ in range(20)])
        connection.store_offset(stream, "t", 1, 13, who=7)
        assert command(*create, "127.0.0.1:1").returncode == 1, "nobody is there to flush"
        made = command(*create, server.address)
        assert (made.returncode, '"messages":20' in made.stdout) == (0, True), made.stderr
    (backup,) = complete_backups(tmp_path / "b")
    assert str(backup) in command("list", str(tmp_path / "b")).stdout
    verify = [sys.executable, "-m", "shardd", "backup", "verify", str(backup), "--full-speed"]
    assert subprocess.run(verify, capture_output=True, check=True).stdout.endswith(b"whole\n")
    assert command("restore", str(backup), str(target)).returncode == 0
    assert command("restore", str(backup), str(target)).returncode == 1
    with Server(target, arguments=()) as server, wire.connect(server.address) as connection:
        assert connection.streams() == {"s": stream}
        assert connection.get_offset(stream, "t", 1, who=7) == 13
        assert len(connection.read_all(stream, "t", 1)) == 20


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Ended:
    """`shardd backup` with these arguments, in this process."""
    result = CliRunner().invoke(app, ["backup", *arguments])
    return Ended(result.exit_code, result.stdout, result.stderr)
