"""`/readyz` and `/healthz` in trouble: before the workers serve, beside a device that stands still, on a full disk."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.doors.metrics_server import HOST, MetricsServer, ask, eventually
from tests.support import wire
from tests.support.frozen_disk import mounted_disk
from tests.support.ports import free_port

SLOW_WORKERS = """
import os, sys, time
def wait():
    while not os.path.exists({go!r}):
        time.sleep(0.05)
if "shardd.cli.template" in sys.orig_argv:
    os.register_at_fork(after_in_child=wait)
"""


def test_a_server_that_recovers_lives_and_is_not_ready(tmp_path: Path) -> None:
    hooks, go, port = tmp_path / "hooks", tmp_path / "go", free_port()
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(SLOW_WORKERS.format(go=str(go)))
    env = {"PYTHONPATH": str(hooks), "SHARDD_METRICS_ADDRESS": f"{HOST}:{port}"}
    server = MetricsServer(tmp_path / "data", env)
    server.spawn()
    try:
        eventually(lambda: "door metrics serves" in server.log(), server.log)
        assert ask((HOST, port), "/healthz").status == 200
        answer = ask((HOST, port), "/readyz")
        assert (answer.status, answer.text) == (503, "shard 0 is not up\nshard 1 is not up\n")
        found = ask((HOST, port), "/metrics")
        assert found.status == 200 and 'shardd_shard_up{shard="1"} 0\n' in found.text
        go.touch()
        eventually(lambda: ask((HOST, port), "/readyz").status == 200, server.log)
    finally:
        go.touch()
        server.stop()


def test_a_device_that_stands_still_is_told(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "data") as disk, MetricsServer(disk.place) as server:
        with wire.connect(server.address) as root:
            root.create_topic(root.create_stream("s"), "t", 2)

        def write() -> None:
            with wire.connect(server.address) as client:
                for partition in range(2):
                    client.send("s", "t", wire.to_partition(partition), [wire.message(b"x")])

        writing = threading.Thread(target=write, daemon=True)
        with disk.frozen():
            writing.start()
            eventually(lambda: "stands still: device" in server.ask("/readyz").text, server.log)
            assert server.ask("/readyz").status == 503 and server.ask("/healthz").status == 200
        writing.join(60)
        server.until_ready()


def test_a_full_disk_is_told_until_there_is_room(tmp_path: Path) -> None:
    with (
        mounted_disk(tmp_path / "data") as disk,
        MetricsServer(disk.place, {"SHARDD_SYSTEM_DISK_RESERVE": "64 MiB"}) as server,
    ):
        large = disk.place / "large"
        with large.open("wb") as file:
            try:
                for _ in range(256):
                    file.write(bytes(1 << 20))
            except OSError:
                pass
        eventually(lambda: server.ask("/readyz").text.count("takes no sends") == 2, server.log)
        assert server.ask("/readyz").status == 503
        eventually(lambda: server.scrape().value("shardd_engine_disk_refuses", shard="0") == 1, server.log)
        large.unlink()
        server.until_ready()
