"""An orderly stop does not wait for what runs in the background, and what it has left is done after the next start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from shardd.client import commands
from shardd.log import layout
from tests.support import wire
from tests.support.links import root_link
from tests.support.server import Server
from tests.support.serving import Serving

WAIT_S = 60.0
NAMES = 5_000  # 25 seconds of the trash
SETTINGS = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(1 << 20),
    "SHARDD_SYSTEM_SCRUBBER_RATE": "64 KiB",  # 16 seconds for each segment
    "SHARDD_SYSTEM_SCRUBBER_PAUSE": "100 ms",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}


def fill(server: Server) -> None:
    """Both shards have sealed segments."""
    with wire.connect(server.address) as connection:
        connection.create_stream("other")
        connection.create_topic(connection.create_stream("s"), "t", 8)
        batch = [wire.message(bytes(100_000))] * 8
        for partition in range(8):
            for _ in range(4):
                connection.send("s", "t", wire.to_partition(partition), batch)


SERVER: Final = Serving(env=SETTINGS, fill=fill)


def fill_trash(server: Server) -> Path:
    """As if a large topic had been deleted."""
    trash, content = layout.trash_directory(server.data_dir), server.data_dir / "content"
    content.mkdir()
    for number in range(NAMES):
        (content / str(number)).touch()
    content.rename(trash / "deleted")
    with wire.connect(server.address) as connection:  # a deletion wakes the job
        connection.request(wire.DELETE_STREAM, wire.identifier("other"))
    return trash / "deleted"


def rows(server: Server) -> list[dict[str, int]]:
    with root_link(server.address) as connection:
        return [each.values for each in connection.call(commands.metrics()).shards]


def total(server: Server, name: str) -> int:
    return sum(row[name] for row in rows(server))


def wait_for(server: Server, name: str, least: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while total(server, name) < least:
        assert time.monotonic() < deadline, f"{name} stays below {least}"
        time.sleep(0.02)


def stop_in_order(server: Server) -> None:
    """Exit status 0: no worker took longer than the supervisor allows (9 s), and each of the jobs has more to do."""
    began = time.monotonic()
    assert server.stop() == 0
    print(f"stopped after {time.monotonic() - began:.2f} s")
    assert "jobs that do not end" not in server.log()


def test_a_stop_does_not_wait_for_a_scrub_and_a_large_trash(own_server: Server) -> None:
    deleted = fill_trash(own_server)
    wait_for(own_server, "jobs.scrubber.bytes", 1)
    wait_for(own_server, "jobs.trash.steps", 100)
    assert total(own_server, "jobs.scrubber.running") == 2 and total(own_server, "jobs.trash.running") == 1
    assert total(own_server, "jobs.scrubber.left") > 0 and total(own_server, "jobs.trash.left") > 0
    stop_in_order(own_server)
    assert 0 < len(list(deleted.iterdir())) <= NAMES - 99, "the trash was in the middle of it"
    own_server.start()
    wait_for(own_server, "jobs.trash.steps", 100)


def test_a_stop_does_not_wait_for_a_backup_and_the_backup_goes_on(own_server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shardd", "backup", "create", str(tmp_path / "backups"), "--data",
               str(own_server.data_dir), "--rate-bytes-per-second", "4 MiB", "--full-speed"]  # fmt: skip
    backup = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while not list((tmp_path / "backups").rglob("*.log")):
            assert backup.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        stop_in_order(own_server)
        assert backup.poll() is None, "it has 6 seconds of work and more"
        output, _ = backup.communicate(timeout=60)
        assert backup.returncode == 0, output
    finally:
        if backup.poll() is None:
            backup.kill()
        backup.wait(10)
    [made] = [path.parent for path in (tmp_path / "backups").rglob("backup.json")]
    verify = [sys.executable, "-m", "shardd", "backup", "verify", str(made), "--full-speed"]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((made / "backup.json").read_text())["left_out"] == []
