"""The NUMA forms of `system.sharding.cpu_allocation` (docs/configuration.md#cpu_allocation).

    numa:auto                           every node, every physical core
    numa:nodes=0,1;cores=4;no_ht=true   these nodes, so many cores of each, without hyper-thread siblings

Nodes count by position among the online nodes, as in Iggy; the kernel's own numbers may have gaps. Unlike Iggy, `cores`
left out takes of each node what it has, so that machines and cpusets with nodes of different sizes work.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from shardd.config.topology import Node, format_list

PREFIX: Final = "numa:"
_NUMBER: Final = re.compile(r"\d{1,6}")


class NumaError(ValueError):
    """The machine does not have what is asked for; the text is a sentence."""


class NumaForm(msgspec.Struct, frozen=True):
    """`nodes` empty: all that have a usable CPU. `cores` 0: all of each node. `no_ht`: one CPU of each core."""

    nodes: tuple[int, ...] = ()
    cores: int = 0
    no_ht: bool = True


def parse_numa(text: str) -> NumaForm:
    """ValueError with a sentence that begins as Iggy's does."""
    body = text.removeprefix(PREFIX)
    if body == "auto":
        return NumaForm()
    given: dict[str, str] = {}
    for part in body.split(";"):
        if part.count("=") != 1:
            raise ValueError(f"Invalid NUMA parameter: {part!r}; write numa:auto or numa:nodes=0,1;cores=4;no_ht=true")
        name, value = part.split("=")
        if name in given:
            raise ValueError(f"Invalid NUMA parameter: {name} is given twice")
        given[name] = value
    unknown = sorted(given.keys() - {"nodes", "cores", "no_ht"})
    if unknown:
        raise ValueError(f"Unknown NUMA parameter: {unknown[0]!r}; there are nodes, cores and no_ht")
    return NumaForm(
        _parse_nodes(given["nodes"]) if "nodes" in given else (),
        _parse_cores(given["cores"]) if "cores" in given else 0,
        _parse_no_ht(given["no_ht"]) if "no_ht" in given else True,
    )


def _parse_nodes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    for part in parts:
        if not _NUMBER.fullmatch(part):
            raise ValueError(f"Invalid node number: {part!r}; write numbers with commas, as in nodes=0,1")
    nodes = tuple(int(part) for part in parts)
    if len(set(nodes)) != len(nodes):
        raise ValueError(f"Invalid node number: {text!r} names a node twice")
    return nodes


def _parse_cores(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"Invalid cores value: {text!r}; write a number, 0 for all cores of a node")
    return int(text)


def _parse_no_ht(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"Invalid no ht value: {text!r}; write true or false")
    return text == "true"


def numa_cpus(form: NumaForm, nodes: list[Node], cpuset: list[int]) -> list[int]:
    """CPUs of the shards, node by node in the order of the list, ascending in each. Raises NumaError."""
    own = set(cpuset)
    chosen: list[int] = []
    for position in form.nodes or range(len(nodes)):
        if position >= len(nodes):
            raise NumaError(f"node {position} requested, {len(nodes)} available; nodes count from 0")
        cpus = _usable(nodes[position], own, form.no_ht)
        wanted = form.cores or (1 if form.nodes else 0)  # of a node that is named at least one
        if len(cpus) < wanted and (cpus or form.nodes):
            kind = "cores" if form.no_ht else "CPUs"
            raise NumaError(
                f"{wanted} {kind} requested, {len(cpus)} available on node {position} "
                f"(its CPUs: {format_list(nodes[position].cpus) or 'none'}; "
                f"cpuset of this process: {format_list(sorted(own))}); lower cores or name other nodes"
            )
        chosen += cpus[: form.cores or len(cpus)]
    if not chosen:
        raise NumaError(f"no node has a CPU of this process's cpuset ({format_list(sorted(own))})")
    return chosen


def _usable(node: Node, own: set[int], no_ht: bool) -> list[int]:
    """Of a core the lowest CPU that this process may use."""
    cores = [usable for core in node.cores if (usable := [cpu for cpu in core if cpu in own])]
    return sorted(core[0] for core in cores) if no_ht else sorted(cpu for core in cores for cpu in core)


def node_numbers(cpus: list[int], nodes: list[Node]) -> list[int]:
    """The kernel's number of the node of each CPU; KeyError for a CPU that is on none."""
    number_of = {cpu: node.number for node in nodes for cpu in node.cpus}
    return [number_of[cpu] for cpu in cpus]
