"""`system.sharding.busy_poll`: a worker that has served a request looks for the next one before it sleeps."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil
import pytest

from shardd.cli.doctor.host import _busy_poll
from shardd.config.loader import load_settings
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

pytestmark = pytest.mark.io_engine
REQUESTS = 400


def times_asleep(pid: int) -> int:
    """How often the loop thread of a worker has gone to sleep by itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)[0])


def sleeps_of(tmp_path: Path, busy_poll: str) -> tuple[int, float]:
    """During pings, one after the other; and the worker's CPU seconds of a second without any."""
    with Server(tmp_path, env=ONE_SHARD | {"SHARDD_SYSTEM_SHARDING_BUSY_POLL": busy_poll}) as server:
        (pid,) = server.worker_pids()
        with wire.connect(server.address) as connection:
            connection.ping()
            before = times_asleep(pid)
            for _ in range(REQUESTS):
                connection.ping()
            asleep = times_asleep(pid) - before
            times = psutil.Process(pid).cpu_times()
            time.sleep(1.0)
            later = psutil.Process(pid).cpu_times()
    return asleep, later.user + later.system - times.user - times.system


def test_who_asks_again_at_once_finds_the_worker_awake(tmp_path: Path) -> None:
    busy, idle_cpu_s = sleeps_of(tmp_path / "busy", "1 ms")
    asleep, _ = sleeps_of(tmp_path / "asleep", "0 s")
    assert asleep >= REQUESTS // 2  # else this shows nothing
    assert busy < asleep / 2
    assert idle_cpu_s < 0.5  # without requests it sleeps


def test_the_doctor_says_when_it_takes_cpus_of_others() -> None:
    settings = load_settings(None, {"SHARDD_SYSTEM_SHARDING_BUSY_POLL": "50 us"}).settings
    no_quota = float("inf")
    for own, quota, level in (([0, 1], no_quota, "warning"), ([0, 1, 2], no_quota, "ok"), ([0, 1, 2], 2.5, "warning")):
        (finding,) = _busy_poll(settings, [0, 1], own, quota)
        assert finding.level == level, (own, quota)
        assert "50 us" in finding.finding
    assert _busy_poll(load_settings(None, {}).settings, [0, 1], [0, 1], no_quota) == []
