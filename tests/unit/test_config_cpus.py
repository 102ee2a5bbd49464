"""Which CPUs get a shard: inside the process's own cpuset and CPU quota (docs/configuration.md#cpu_allocation)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.config.cgroups import cpu_quota
from shardd.config.cpus import SHARDS_MAX, CpuAllocationError, allocate_cpus, check_cpu_allocation

NO_QUOTA = float("inf")


@pytest.mark.parametrize(
    ("allocation", "cpuset", "quota", "expected"),
    [
        ("all", [0, 1, 2, 3], NO_QUOTA, [0, 1, 2, 3]),
        ("all", [8, 9, 10, 11], NO_QUOTA, [8, 9, 10, 11]),
        ("all", [8, 9, 10, 11], 2.0, [8, 9]),
        ("all", [0, 1, 2, 3], 2.5, [0, 1]),
        ("all", [0, 1], 0.5, [0]),
        ("all", list(range(512)), NO_QUOTA, list(range(SHARDS_MAX))),
        ("2", [5, 7, 9], NO_QUOTA, [5, 7]),
        ("5..8", [4, 5, 6, 7, 8], NO_QUOTA, [5, 6, 7]),
    ],
)
def test_allocation(allocation: str, cpuset: list[int], quota: float, expected: list[int]) -> None:
    assert allocate_cpus(allocation, cpuset, quota) == expected


@pytest.mark.parametrize(
    ("allocation", "cpuset", "quota", "sentence"),
    [
        ("3", [0, 1], NO_QUOTA, "3 shards wanted, 2 possible"),
        ("2", [0, 1], 1.0, r"2 shards wanted, 1 possible \(2 CPUs in the cpuset, quota 1\)"),
        ("0..3", [0, 1], NO_QUOTA, r"CPU 2 of 0\.\.3 is not in this process's cpuset \(0-1\)"),
        ("0..2", [0, 1, 5], 1.0, "2 shards wanted, 1 possible"),
    ],
)
def test_what_cannot_be_met(allocation: str, cpuset: list[int], quota: float, sentence: str) -> None:
    with pytest.raises(CpuAllocationError, match=sentence):
        allocate_cpus(allocation, cpuset, quota)


@pytest.mark.parametrize("value", ["all", "ALL", "4", 4, "0..4", "256"])
def test_forms(value: object) -> None:
    assert check_cpu_allocation(value) == str(value).lower()


@pytest.mark.parametrize(
    "value", ["numa", "0", 0, 257, "4..4", "5..4", "1..2..3", "a..b", "", "-1", True, 1.5, "0 .. 4"]
)
def test_no_forms(value: object) -> None:
    with pytest.raises(ValueError, match=r"CPU allocation|out of range|empty range"):
        check_cpu_allocation(value)


def groups(tmp_path: Path, membership: str, files: dict[str, str]) -> float:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text(membership)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cpu_quota(proc, root)


def test_quota_of_control_groups_v2(tmp_path: Path) -> None:
    files = {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}
    assert groups(tmp_path, "0::/a/b\n", files) == 1.5


def test_quota_of_a_container_whose_group_is_not_visible(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/kubepods/pod1\n", {"cpu.max": "200000 100000\n"}) == 2.0


def test_quota_of_control_groups_v1(tmp_path: Path) -> None:
    files = {"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}
    assert groups(tmp_path, "4:cpu,cpuacct:/x\n3:cpuset:/\n", files) == 0.5


def test_no_quota(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n", "cpu.max": "max 100000\n"}
    assert groups(tmp_path, "1:cpu:/\n0::/\n", files) == NO_QUOTA
