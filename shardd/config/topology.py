"""The NUMA nodes of this machine and the physical cores on them, as the kernel shows them below /sys/devices/system."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

SYSTEM: Final = Path("/sys/devices/system")


class TopologyError(ValueError):
    """The topology cannot be read; the text is a sentence."""


class Node(msgspec.Struct, frozen=True):
    """`number`: the kernel's number of the node. `cores`: the online CPUs, grouped by physical core; each group and the
    list are in ascending order. A node that only has memory has none."""

    number: int
    cores: list[list[int]]

    @property
    def cpus(self) -> list[int]:
        return sorted(cpu for core in self.cores for cpu in core)


def read_nodes(system: Path = SYSTEM) -> list[Node]:
    """All online nodes by number. Raises TopologyError: without sysfs, or on a kernel without NUMA support."""
    online = _read_list(system / "cpu" / "online")
    nodes = [
        Node(number, _cores(system, sorted(online & _read_list(system / "node" / f"node{number}" / "cpulist"))))
        for number in sorted(_read_list(system / "node" / "online"))
    ]
    if not nodes:
        raise TopologyError("no NUMA node is online")
    return nodes


def _cores(system: Path, cpus: list[int]) -> list[list[int]]:
    """CPUs grouped by physical core. One whose siblings the kernel does not tell (some virtual machines) is alone."""
    cores: list[list[int]] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        try:
            siblings = _read_list(system / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        except TopologyError:
            siblings = set()
        core = sorted((siblings | {cpu}) & set(cpus))
        seen |= set(core)
        cores.append(core)
    return cores


def _read_list(path: Path) -> set[int]:
    try:
        return parse_list(path.read_text())
    except (OSError, ValueError) as error:
        raise TopologyError(f"the NUMA topology cannot be read: {error}") from error


def parse_list(text: str) -> set[int]:
    """The kernel's list format: "0-2,5" -> {0, 1, 2, 5}; empty text -> empty set. ValueError."""
    numbers: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def format_list(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"; the numbers ascend."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
