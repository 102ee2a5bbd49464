"""A server under config/seccomp-shardd.json: everything it does is allowed, and what nobody needs is not."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import under_seccomp, wire
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "config" / "seccomp-shardd.json"
BACK_WITHIN_S = 20.0

try:
    ctypes.CDLL(under_seccomp.LIBRARY)
except OSError:
    pytest.skip("libseccomp2 is not installed", allow_module_level=True)


def launcher(profile: Path) -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "support" / "under_seccomp.py"), str(profile)]


def under(profile: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*launcher(profile), *command], capture_output=True, text=True, timeout=60, check=False)


def exchange(address: str, message: bytes) -> list[bytes]:
    """Sends a message to each of two partitions; everything that is stored in them."""
    with wire.connect(address) as connection:
        for partition in (0, 1):
            connection.send("s", "t", wire.to_partition(partition), [wire.message(message)])
        polls = [connection.poll("s", "t", partition, strategy=wire.POLL_FIRST, count=100) for partition in (0, 1)]
        return [each.payload for polled in polls for each in polled.messages]


def test_a_server_under_the_profile(tmp_path: Path) -> None:
    env = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "numa:auto", "SHARDD_SYSTEM_SEGMENT_SIZE": "512"}
    with Server(tmp_path / "data", env, launcher=launcher(PROFILE)) as server:
        for pid in (server.pid, *server.worker_pids()):
            assert "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 2)
        assert exchange(server.address, b"a" * 300) == [b"a" * 300] * 2
        for pid in server.worker_pids():
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + BACK_WITHIN_S
        while server.log().count("is back (process") < len(server.worker_pids()):
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.02)
        assert exchange(server.address, b"b" * 300) == [b"a" * 300, b"b" * 300] * 2
        assert "memory is not bound" not in server.log()
        assert server.stop() == 0, server.log()


def test_doctor_under_the_profile(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "shardd", "doctor", "--json", "--data", str(tmp_path / "data"))
    found = {each["check"]: each for each in json.loads(under(PROFILE, *command).stdout)}
    assert found["seccomp"]["finding"] == "a filter"
    assert found["io_uring"]["level"] == "ok"


@pytest.mark.parametrize("call", ["unshare(0x20000000)", "mount(b'x', b'/', b'tmpfs', 0, None)", "ptrace(0, 0, 0, 0)"])
def test_what_nobody_needs_is_forbidden(call: str) -> None:
    program = f"import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.{call}, ctypes.get_errno())"
    assert under(PROFILE, sys.executable, "-c", program).stdout.split() == ["-1", "1"]


def test_without_the_ring_the_refusal_is_seen(tmp_path: Path) -> None:
    profile = json.loads(PROFILE.read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if not name.startswith("io_uring")]
    narrowed = tmp_path / "narrowed.json"
    narrowed.write_text(json.dumps(profile))
    command = (sys.executable, "-m", "shardd", "doctor", "--json", "--data", str(tmp_path / "data"))
    found = {each["check"]: each for each in json.loads(under(narrowed, *command).stdout)}
    assert "forbidden" in found["io_uring"]["finding"]
    assert "seccomp-shardd.json" in found["io_uring"]["meaning"]
