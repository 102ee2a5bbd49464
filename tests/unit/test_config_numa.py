"""`numa:` allocations on fake sysfs trees, and the system calls that bind memory
(docs/configuration.md#cpu_allocation)."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardd.config.cpus import CpuAllocationError, allocate_cpus, check_cpu_allocation, memory_nodes
from shardd.config.loader import load_settings
from shardd.config.numa import NumaForm, parse_numa
from shardd.config.topology import TopologyError, format_list, parse_list, read_nodes
from shardd.runtime.inheritance import WorkerInheritance
from shardd.runtime.trust import TrustInheritance
from shardd.worker.memory_binding import bind_memory

NO_QUOTA = float("inf")


def tree(root: Path, nodes: dict[int, str], siblings: list[str], online: str) -> Path:
    """/sys/devices/system of a machine: CPUs of each node and the sibling lists, in the kernel's list format."""
    (root / "cpu").mkdir(parents=True)
    (root / "cpu" / "online").write_text(online + "\n")
    for number, cpus in nodes.items():
        (root / "node" / f"node{number}").mkdir(parents=True)
        (root / "node" / f"node{number}" / "cpulist").write_text(cpus + "\n")
    (root / "node" / "online").write_text(format_list(sorted(nodes)) + "\n")
    for core in siblings:
        for cpu in parse_list(core):
            topology = root / "cpu" / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(core + "\n")
    return root


def one_node(root: Path) -> Path:
    return tree(root, {0: "0-3"}, ["0", "1", "2", "3"], "0-3")


def smt(root: Path) -> Path:
    """Two nodes of four cores, eight CPUs each; the siblings are numbered behind all cores, as Intel does."""
    return tree(root, {0: "0-3,8-11", 1: "4-7,12-15"}, [f"{cpu},{cpu + 8}" for cpu in range(8)], "0-15")


def asymmetric(root: Path) -> Path:
    """Four CPUs, two CPUs, memory alone; the kernel's numbers have a gap."""
    return tree(root, {0: "0-3", 2: "4-5", 3: ""}, [str(cpu) for cpu in range(6)], "0-5")


def offline(root: Path) -> Path:
    """Of two siblings pairs the lower CPU of the first is off; an offline CPU has no topology directory."""
    return tree(root, {0: "0-3"}, ["2", "1,3"], "1-3")


@pytest.mark.parametrize(
    ("machine", "allocation", "cpuset", "quota", "cpus", "nodes"),
    [
        (one_node, "numa:auto", range(4), NO_QUOTA, [0, 1, 2, 3], [0, 0, 0, 0]),
        (one_node, "numa:nodes=0;cores=2", range(4), NO_QUOTA, [0, 1], [0, 0]),
        (one_node, "numa:auto", range(4), 2.5, [0, 1], [0, 0]),
        (smt, "numa:auto", range(16), NO_QUOTA, list(range(8)), [0] * 4 + [1] * 4),
        (smt, "numa:cores=2", range(16), NO_QUOTA, [0, 1, 4, 5], [0, 0, 1, 1]),
        (smt, "numa:no_ht=false;cores=5;nodes=1", range(16), NO_QUOTA, [4, 5, 6, 7, 12], [1] * 5),
        (smt, "numa:nodes=1,0;cores=1", range(16), NO_QUOTA, [4, 0], [1, 0]),
        # the lowest CPU of a core that this process may use
        (smt, "numa:auto", [8, 1, 9, 14], NO_QUOTA, [1, 8, 14], [0, 0, 1]),
        (smt, "numa:auto", [5, 13, 6], NO_QUOTA, [5, 6], [1, 1]),
        (smt, "numa:no_ht=false", [5, 13, 6], NO_QUOTA, [5, 6, 13], [1, 1, 1]),
        (asymmetric, "numa:auto", range(6), NO_QUOTA, list(range(6)), [0] * 4 + [2] * 2),
        (asymmetric, "numa:nodes=1,0;cores=2", range(6), NO_QUOTA, [4, 5, 0, 1], [2, 2, 0, 0]),
        (offline, "numa:auto", range(4), NO_QUOTA, [1, 2], [0, 0]),
        (offline, "numa:no_ht=false", range(4), NO_QUOTA, [1, 2, 3], [0, 0, 0]),
    ],
)
def test_allocation(
    tmp_path: Path, machine: Any, allocation: str, cpuset: Any, quota: float, cpus: list[int], nodes: list[int]
) -> None:
    system = machine(tmp_path)
    assert allocate_cpus(check_cpu_allocation(allocation), list(cpuset), quota, system) == cpus
    assert memory_nodes(allocation, cpus, system) == nodes


@pytest.mark.parametrize(
    ("machine", "allocation", "cpuset", "quota", "sentence"),
    [
        (one_node, "numa:nodes=1", range(4), NO_QUOTA, "node 1 requested, 1 available"),
        (one_node, "numa:cores=5", range(4), NO_QUOTA, "5 cores requested, 4 available on node 0"),
        (smt, "numa:cores=5", range(16), NO_QUOTA, "5 cores requested, 4 available on node 0"),
        (smt, "numa:cores=9;no_ht=false", range(16), NO_QUOTA, "9 CPUs requested, 8 available on node 0"),
        (smt, "numa:nodes=0", [4, 5], NO_QUOTA, r"1 cores requested, 0 available on node 0 .*cpuset .*: 4-5"),
        (smt, "numa:auto", [99], NO_QUOTA, r"no node has a CPU of this process's cpuset \(99\)"),
        (smt, "numa:cores=2", range(16), 3.0, r"4 shards wanted by numa:cores=2, 3 possible .*quota 3"),
        (asymmetric, "numa:nodes=0,1;cores=3", range(6), NO_QUOTA, "3 cores requested, 2 available on node 1"),
        (asymmetric, "numa:nodes=2", range(6), NO_QUOTA, "available on node 2 .its CPUs: none"),
    ],
)
def test_what_cannot_be_met(
    tmp_path: Path, machine: Any, allocation: str, cpuset: Any, quota: float, sentence: str
) -> None:
    with pytest.raises(CpuAllocationError, match=sentence):
        allocate_cpus(allocation, list(cpuset), quota, machine(tmp_path))


def test_a_machine_without_a_topology(tmp_path: Path) -> None:
    with pytest.raises(CpuAllocationError, match=r"topology cannot be read: .*write all, a count or a range"):
        allocate_cpus("numa:auto", [0], NO_QUOTA, tmp_path)
    (tmp_path / "none" / "node").mkdir(parents=True)
    tree(tmp_path / "none", {}, [], "0")
    with pytest.raises(TopologyError, match="no NUMA node is online"):
        read_nodes(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("numa:auto", NumaForm()),
        ("numa:nodes=0,1;cores=4;no_ht=true", NumaForm((0, 1), 4, True)),
        ("numa:no_ht=false;nodes=3", NumaForm((3,), 0, False)),
        ("numa:cores=0", NumaForm()),
    ],
)
def test_forms(text: str, form: NumaForm) -> None:
    assert parse_numa(text) == form
    assert check_cpu_allocation(text.upper()) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("numa:", "Invalid NUMA parameter"),
        ("numa:nodes", "Invalid NUMA parameter"),
        ("numa:nodes=0;", "Invalid NUMA parameter"),
        ("numa:nodes=0=1", "Invalid NUMA parameter"),
        ("numa:cores=1;cores=2", "Invalid NUMA parameter: cores is given twice"),
        ("numa:sockets=1", "Unknown NUMA parameter: 'sockets'"),
        ("numa:nodes=a", "Invalid node number"),
        ("numa:nodes=", "Invalid node number"),
        ("numa:nodes=0,0", "Invalid node number"),
        ("numa:cores=-1", "Invalid cores value"),
        ("numa:no_ht=yes", "Invalid no ht value"),
    ],
)
def test_no_forms(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_cpu_allocation(text)


class Recorder:
    """Keeps the calls; refuses them with an errno when it is given one."""

    def __init__(self, errno: int = 0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._errno = errno

    def memory_bind_thread(self, node: int, /) -> None:
        self.calls.append(("thread", node))
        if self._errno:
            raise OSError(self._errno, "refused")

    def memory_bind_memfd(self, fd: int, size_bytes: int, node: int, /) -> None:
        self.calls.append(("memfd", fd, size_bytes, node))


def inheritance(nodes: list[int]) -> WorkerInheritance:
    return WorkerInheritance(
        shard=1, shards=2, cpus=[4, 6], settings=load_settings(None, {}).settings, address="127.0.0.1:1",
        control_fd=3, listener_fd=4, directory_lock_fd=5, shared_fd=6, pool_fds=[7, 8], pool_bytes=1 << 30,
        doorbell_fds=[9, 10], handover_receive_fd=11, handover_send_fds=[12, 13], root_name="iggy",
        trust=TrustInheritance("shard-1", 1, 14, {"shard-0": 15}, []),
        root_password="secret", started_at_us=1, supervisor_pid=2, version="0", respawns=0, memory_nodes=nodes,
        io_engine="io_uring",
    )  # fmt: skip


def test_a_worker_binds_its_own_node_and_its_own_pool() -> None:
    recorder = Recorder()
    assert bind_memory(inheritance([0, 2]), recorder)
    assert recorder.calls == [("thread", 2), ("memfd", 8, 1 << 30, 2)]


def test_other_allocations_bind_nothing() -> None:
    recorder = Recorder()
    assert not bind_memory(inheritance([]), recorder)
    assert recorder.calls == []


def test_a_refused_binding_is_logged_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    assert not bind_memory(inheritance([0, 2]), Recorder(errno=1))
    assert caplog.messages == ["memory is not bound to NUMA node 2: Operation not permitted"]


_REAL_CALL = """
import os
from shardd.engine import _native
fd = os.memfd_create("pool")
os.ftruncate(fd, 1 << 20)
print(_native.memory_policy(), _native.memory_policy(fd))
_native.memory_bind_memfd(fd, 1 << 20, {node})
print(_native.memory_policy(), _native.memory_policy(fd))
_native.memory_bind_thread({node})
print(_native.memory_policy())
for call in (lambda: _native.memory_bind_thread(1000), lambda: _native.memory_bind_thread(1 << 20)):
    try:
        call()
    except OSError as error:
        print(error.errno)
"""


def test_the_kernel_reads_the_policies_back() -> None:
    try:
        node = read_nodes()[0].number
    except TopologyError:
        pytest.skip("this kernel has no NUMA support")
    answer = subprocess.run(
        [sys.executable, "-c", _REAL_CALL.format(node=node)], capture_output=True, text=True, timeout=60, check=False
    )
    if "PermissionError" in answer.stderr:
        pytest.skip("memory policies are not allowed here")
    assert answer.stdout.splitlines() == [
        "(0, []) (0, [])",
        f"(0, []) (2, [{node}])",
        f"(2, [{node}])",
        str(errno.EINVAL),
        str(errno.EINVAL),
    ], answer.stderr
