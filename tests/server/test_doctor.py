"""`shardd doctor`: what it says about the machine at hand, and about others shown to it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from shardd.cli.doctor.command import as_lines, examine
from shardd.cli.doctor.host import kernel_version
from shardd.cli.doctor.report import Finding, Level, Roots
from shardd.cli.doctor.storage import directory_holder, mount_of
from shardd.cli.main import app
from shardd.config.loader import load_settings
from tests.conftest import MakeServer
from tests.support.server import ONE_SHARD

CHECKS = [
    "kernel", "io_uring", "seccomp", "open files", "locked memory", "cpuset", "shards", "NUMA", "pool", "memory",
    "swap", "clock source", "wall clock", "data directory", "file system", "fdatasync", "cached reads", "free space",
    "free inodes", "address",
]  # fmt: skip


def shardd(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """In this process."""
    foreign = dict.fromkeys((name for name in os.environ if name.startswith(("SHARDD_", "IGGY_"))), None)
    return CliRunner().invoke(app, [*arguments], env=foreign | (env or {}))


def findings(data: Path, env: dict[str, str] | None = None) -> tuple[int, dict[str, Finding]]:
    done = shardd("doctor", "--json", "--data", str(data), env={"SHARDD_TCP_ADDRESS": "127.0.0.1:0"} | (env or {}))
    return done.exit_code, {each.check: each for each in msgspec.json.decode(done.stdout, type=list[Finding])}


def test_a_machine_that_can_run_the_server(tmp_path: Path) -> None:
    status, found = findings(tmp_path / "data")
    assert status == 0
    assert list(found) == CHECKS
    assert all(each.finding and each.meaning for each in found.values())
    assert not (tmp_path / "data").exists() and not list(tmp_path.iterdir()), "a report leaves nothing behind"


def test_the_report_for_people(tmp_path: Path) -> None:
    done = shardd("doctor", "--data", str(tmp_path / "data"), env={"SHARDD_TCP_ADDRESS": "127.0.0.1:0"})
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(CHECKS) + 1
    assert lines[-1].startswith("the server can start here; problems: 0")


@pytest.mark.parametrize(
    ("env", "check", "part"),
    [
        ({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "256"}, "shards", "256 shards wanted"),
        ({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "numa:nodes=900"}, "shards", "node 900 requested"),
        ({"SHARDD_TCP_ADDRESS": "192.0.2.1:8090"}, "address", "Cannot assign requested address"),
    ],
)
def test_what_stops_a_start(tmp_path: Path, env: dict[str, str], check: str, part: str) -> None:
    status, found = findings(tmp_path / "data", env)
    assert status == 1
    assert found[check].level is Level.PROBLEM and part in found[check].finding
    assert [each.check for each in found.values() if each.level is Level.PROBLEM] == [check]


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    status, found = findings(tmp_path / "data")
    assert status == 1 and "is no directory" in found["data directory"].finding


def test_wrong_settings_end_as_those_of_serve(tmp_path: Path) -> None:
    done = shardd("doctor", env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "numa:x"})
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid NUMA parameter" in done.stderr


def test_beside_a_running_server(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(env=ONE_SHARD)
    status, found = findings(server.data_dir, {"SHARDD_TCP_ADDRESS": server.address})
    assert status == 0, "its own directory and its own address are no problem of the server"
    assert found["address"].level is Level.WARNING and str(server.pid) in found["address"].meaning
    status, found = findings(tmp_path / "other", {"SHARDD_TCP_ADDRESS": server.address})
    assert status == 1 and "is held by a shardd server" in found["address"].finding
    status, found = findings(server.data_dir)
    assert status == 1 and str(server.pid) in found["data directory"].finding
    assert server.stop() == 0
    assert directory_holder(server.data_dir) == ""


def test_an_address_of_another_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        status, found = findings(tmp_path / "data", {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{listener.getsockname()[1]}"})
    assert status == 1 and "Address already in use" in found["address"].finding


def other_machine(root: Path, **files: str) -> Roots:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Roots(proc=root / "proc", sys=root / "sys")


def test_another_machine(tmp_path: Path) -> None:
    roots = other_machine(
        tmp_path / "machine",
        proc__meminfo="MemAvailable: 1048576 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n",
        proc__sys__vm__swappiness="60\n",
        proc__self__status="Name:\tx\nSeccomp:\t2\n",
        proc__self__mountinfo="1 0 0:1 / / rw,relatime shared:1 - overlay overlay rw\n",
        sys__devices__system__clocksource__clocksource0__current_clocksource="hpet\n",
        sys__devices__system__cpu__online="0-3\n",
        sys__devices__system__node__online="0-1\n",
        sys__devices__system__node__node0__cpulist="0\n",
        sys__devices__system__node__node1__cpulist="1-3\n",
    )
    settings = load_settings(None, {}, {"system.path": str(tmp_path / "data")}).settings
    found = {each.check: each for each in examine(settings, roots)}
    assert found["swap"].finding == "2.0 GiB, 1.0 GiB in use, vm.swappiness 60"
    assert found["memory"].level is Level.WARNING and "1.0 GiB available" in found["memory"].finding
    assert found["seccomp"].finding == "a filter"
    assert found["clock source"].level is Level.WARNING
    assert found["file system"].level is Level.WARNING and "overlay at /" in found["file system"].finding
    if len(os.sched_getaffinity(0) & {0, 1, 2, 3}) > 1 and 0 in os.sched_getaffinity(0):
        assert found["NUMA"].level is Level.WARNING


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    roots = other_machine(
        tmp_path,
        proc__self__mountinfo="1 0 8:1 / / rw - ext4 /dev/a rw\n"
        "2 1 0:5 / /srv/my\\040data ro,noatime - nfs4 host:/x rw\n3 1 0:6 / /srv/my rw - xfs /dev/b rw\n",
    )
    assert mount_of(Path("/srv/my data/x"), roots) == ("/srv/my data", "nfs4", "ro,noatime")
    assert mount_of(Path("/srv/mydata"), roots) == ("/", "ext4", "rw")


def test_problems_decide_the_verdict() -> None:
    found = [Finding("a", Level.OK, "b", "c"), Finding("dd", Level.PROBLEM, "e", "f")]
    assert as_lines(found).splitlines()[-1] == "the server could not start here; problems: 1, warnings: 0"


@pytest.mark.parametrize(
    ("release", "version"), [("6.1.0-13-amd64", (6, 1)), ("5.19", (5, 19)), ("6.8-rc1", (6, 8)), ("odd", (0, 0))]
)
def test_kernel_versions(release: str, version: tuple[int, int]) -> None:
    assert kernel_version(release) == version
