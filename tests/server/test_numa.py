"""A server with a `numa:` allocation on the machine at hand: its workers' memory is bound, and it serves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from shardd.config.cpus import allocate_cpus, memory_nodes
from shardd.config.topology import TopologyError, read_nodes
from tests.conftest import MakeServer


def test_pool_and_thread_are_bound_to_the_node(make_server: MakeServer) -> None:
    try:
        read_nodes()
    except TopologyError:
        pytest.skip("this kernel has no NUMA support")
    cpus = allocate_cpus("numa:auto")
    nodes = memory_nodes("numa:auto", cpus)
    server = make_server(env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "numa:auto"})
    if "memory is not bound" in server.log():
        pytest.skip("memory policies are not allowed here")
    for shard, pid in enumerate(server.worker_pids()):
        assert psutil.Process(pid).cpu_affinity() == [cpus[shard]]
        maps = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
        own_pool = [line.split()[1] for line in maps if f"memfd:shardd-pool-{shard}" in line]
        assert own_pool and set(own_pool) == {f"bind:{nodes[shard]}"}
        assert any(line.split()[1] == f"bind:{nodes[shard]}" for line in maps if " heap" in line)
