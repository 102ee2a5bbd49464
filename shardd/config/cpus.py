"""`system.sharding.cpu_allocation`: which CPUs get a shard (docs/configuration.md#cpu_allocation).

Only CPUs of the process's own cpuset are used, and not more of them than its CPU quota pays for: a container that may
use CPUs 8-11 with a quota of two CPUs gets two shards on CPUs 8 and 9.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from shardd.config.cgroups import cpu_quota
from shardd.config.digits import number_of
from shardd.config.numa import PREFIX, NumaError, numa_cpus, parse_numa
from shardd.config.numa import node_numbers as numa_node_numbers
from shardd.config.topology import SYSTEM, TopologyError, format_list, parse_list, read_nodes

SHARDS_MAX: Final = 256  # native/src/base/shared.h
_RANGE: Final = re.compile(r"(\d{1,6})\.\.(\d{1,6})")
_LIST: Final = re.compile(r"((\d{1,4}(-\d{1,4})?)(,\d{1,4}(-\d{1,4})?){0,255})?", re.ASCII)
_FORMS: Final = "all, a count, a range like 0..4, or numa:auto"


class CpuAllocationError(ValueError):
    """The allocation cannot be met here; the text is a sentence."""


def check_cpu_allocation(value: object) -> str:
    """The form alone: "all", a count (number or text), "a..b" with b exclusive, "numa:...".

    ValueError with a sentence.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no CPU allocation; write {_FORMS}")
    text = value.strip().lower()
    if text.startswith(PREFIX):
        parse_numa(text)
        return text
    span = _RANGE.fullmatch(text)
    if span is not None and int(span[1]) >= int(span[2]):
        raise ValueError(f"{value!r} is an empty range; the end is exclusive")
    count = number_of(text)
    if count is not None and not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"{value!r} is out of range; 1 to {SHARDS_MAX} shards")
    if text != "all" and span is None and count is None:
        raise ValueError(f"{value!r} is no CPU allocation; write {_FORMS}")
    return text


def parse_cpus(value: object) -> str:
    """CPUs in the kernel's list format ("0-2,5"), in its shortest form; "": none is named.

    ValueError with a sentence.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _LIST.fullmatch(text.strip()):
        raise ValueError(f"{value!r} is no list of CPUs; write them like 0-2,5")
    for span in text.split(","):
        first, _, last = span.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"{span.strip()} is an empty range of CPUs")
    return format_list(sorted(parse_list(text)))


def own_cpus(cpus: str) -> list[int]:
    """Those of `parse_cpus`. Raises CpuAllocationError when this process may not run on one of them."""
    wanted, own = sorted(parse_list(cpus)), sorted(os.sched_getaffinity(0))
    _require_own(wanted, own, cpus)
    return wanted


def _require_own(wanted: list[int], own: list[int], written: str) -> None:
    foreign = sorted(set(wanted) - set(own))
    if foreign:
        raise CpuAllocationError(f"CPU {foreign[0]} of {written} is not in this process's cpuset ({format_list(own)})")


def allocate_cpus(
    allocation: str, cpuset: list[int] | None = None, quota: float | None = None, system: Path = SYSTEM
) -> list[int]:
    """CPU number of each shard. `cpuset` and `quota` default to this process's own. Raises CpuAllocationError."""
    own = sorted(os.sched_getaffinity(0)) if cpuset is None else sorted(cpuset)
    paid = cpu_quota() if quota is None else quota
    usable = min(len(own), SHARDS_MAX, max(1, int(min(paid, SHARDS_MAX))))
    limits = f"{len(own)} CPUs in the cpuset" + (f", quota {paid:g}" if paid < len(own) else "")
    if allocation == "all":
        return own[:usable]
    if allocation.startswith(PREFIX):
        return _allocate_numa(allocation, own, usable, limits, system)
    span = _RANGE.fullmatch(allocation)
    if span is None:
        count = int(allocation)
        if count > usable:
            raise CpuAllocationError(f"{count} shards wanted, {usable} possible ({limits})")
        return own[:count]
    wanted = list(range(int(span[1]), int(span[2])))
    _require_own(wanted, own, allocation)
    if len(wanted) > usable:
        raise CpuAllocationError(f"{len(wanted)} shards wanted, {usable} possible ({limits})")
    return wanted


def _allocate_numa(allocation: str, own: list[int], usable: int, limits: str, system: Path) -> list[int]:
    """A quota cuts "all cores" down, as it does for "all"; a number of cores that it does not pay for is refused."""
    form = parse_numa(allocation)
    try:
        cpus = numa_cpus(form, read_nodes(system), own)
    except TopologyError as error:
        raise CpuAllocationError(f"{error}; write all, a count or a range instead of {allocation}") from error
    except NumaError as error:
        raise CpuAllocationError(f"{allocation}: {error}") from error
    if form.cores and len(cpus) > usable:
        raise CpuAllocationError(f"{len(cpus)} shards wanted by {allocation}, {usable} possible ({limits})")
    return cpus[:usable]


def memory_nodes(allocation: str, cpus: list[int], system: Path = SYSTEM) -> list[int]:
    """The kernel's number of the NUMA node that the memory of each shard is bound to; empty unless the allocation is a
    NUMA form. Raises CpuAllocationError."""
    if not allocation.startswith(PREFIX):
        return []
    try:
        return numa_node_numbers(cpus, read_nodes(system))
    except (TopologyError, KeyError) as error:
        raise CpuAllocationError(f"the topology changed while the server started: {error}") from error
