"""Checks of `shardd doctor`: kernel, ring, limits, CPUs, memory, clock."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import time
from pathlib import Path
from typing import Final

import shardd
from shardd.cli.doctor.report import Finding, Roots, ok, problem, warning
from shardd.config.cgroups import cpu_quota, memory_limit_bytes
from shardd.config.cpus import CpuAllocationError, allocate_cpus, memory_nodes
from shardd.config.digits import number_of
from shardd.config.schema import Settings
from shardd.config.topology import TopologyError, format_list, read_nodes
from shardd.config.units import format_duration_us, format_size
from shardd.server.errors import StartupError
from shardd.server.shared_resources import descriptors_wanted, pool_share_bytes

_SECCOMP: Final = {"0": "off", "1": "strict", "2": "a filter"}
_SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_STA_UNSYNC: Final = 0x40
_TIME_ERROR: Final = 5


def host_findings(settings: Settings, roots: Roots) -> list[Finding]:
    return [
        _kernel(),
        _engine(settings, roots),
        _seccomp(roots),
        _open_files(settings),
        _locked_memory(),
        *_cpus(settings, roots),
        *_pool(settings, roots),
        _swap(roots),
        *_clock(roots),
    ]


def _kernel() -> Finding:
    name = f"{platform.system()} {platform.release()} on {platform.machine()}"
    version = kernel_version(platform.release())
    if version < (5, 19):
        return warning("kernel", name, "older than 5.19: engine epoll is used")
    if version < (6, 1):
        return ok("kernel", name, "the ring works; from 6.1 on it interrupts the loop thread less")
    return ok("kernel", name, "has all features of the ring that the engine uses")


def kernel_version(release: str) -> tuple[int, int]:
    """ "6.1.0-13-amd64" -> (6, 1); (0, 0) for what is not a version."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    numbers = number_of(major), number_of(minor)
    return (0, 0) if numbers[0] is None or numbers[1] is None else (numbers[0], numbers[1])


def _engine(settings: Settings, roots: Roots) -> Finding:
    disabled = roots.read(roots.proc / "sys/kernel/io_uring_disabled")
    state = f"kernel.io_uring_disabled = {disabled}" if disabled is not None else "kernel without io_uring_disabled"
    try:
        from shardd.engine import _native
    except ImportError as error:
        return problem("io_uring", f"the native engine is not built ({error})", "run `make native`")
    reason = _native.probe()
    setting = settings.system.io_engine
    if not reason:
        meaning = "system.io_engine forces epoll" if setting == "epoll" else "engine io_uring is used"
        return ok("io_uring", f"a ring with its buffers was set up ({state})", meaning)
    ways = "allow io_uring_setup, io_uring_enter and io_uring_register (config/seccomp-shardd.json)"
    if disabled not in (None, "0"):
        ways = "set sysctl kernel.io_uring_disabled=0"
    if setting == "io_uring":
        return problem("io_uring", f"{reason} ({state})", f"system.io_engine demands it: {ways}, or set it to auto")
    return warning("io_uring", f"{reason} ({state})", f"engine epoll is used; for io_uring {ways}")


def _status_field(roots: Roots, name: str) -> str | None:
    for line in (roots.read(roots.proc / "self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return None


def _seccomp(roots: Roots) -> Finding:
    mode = _status_field(roots, "Seccomp")
    if mode is None:
        return ok("seccomp", "not known", "this kernel does not tell")
    meaning = "no system call is forbidden"
    if mode != "0":
        meaning = "what the filter forbids shows in the other lines; config/seccomp-shardd.json allows what is needed"
    return ok("seccomp", _SECCOMP.get(mode, mode), meaning)


def _open_files(settings: Settings) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors_wanted(settings.server.connections_max, settings.proxies)
    finding = f"soft {_limit(soft)}, hard {_limit(hard)}; {wanted} wanted"
    if hard != resource.RLIM_INFINITY and hard < wanted:
        others = wanted - settings.server.connections_max
        meaning = (
            f"below server.connections_max and {others} for files and proxies: connections may wait in the backlog; "
            "raise the hard limit"
        )
        return warning("open files", finding, meaning)
    return ok("open files", finding, "the server raises its soft limit to the hard one")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
    if kernel_version(platform.release()) >= (5, 12):
        return ok("locked memory", text, "not needed: since Linux 5.12 rings count as memory of the control group")
    return ok(
        "locked memory", text, "rings count against it on this kernel; the io_uring line says whether it is enough"
    )


def _cpus(settings: Settings, roots: Roots) -> list[Finding]:
    own, quota = sorted(os.sched_getaffinity(0)), cpu_quota()
    paid = "none" if quota == float("inf") else f"{quota:g} CPUs"
    findings = [ok("cpuset", f"{format_list(own)}, CPU quota {paid}", "shards use no other CPUs")]
    allocation = settings.system.sharding.cpu_allocation
    system = roots.sys / "devices/system"
    try:
        cpus = allocate_cpus(allocation, own, quota, system)
        bound = memory_nodes(allocation, cpus, system)
    except CpuAllocationError as error:
        return [*findings, problem("shards", f"system.sharding.cpu_allocation: {error}", "the server would not start")]
    findings.append(
        ok("shards", f"{allocation}: {len(cpus)} on CPU {format_list(sorted(cpus))}", "one worker for each")
    )
    return [*findings, *_busy_poll(settings, cpus, own, quota), _numa(system, cpus, bound)]


def _busy_poll(settings: Settings, cpus: list[int], own: list[int], quota: float) -> list[Finding]:
    busy_poll_us = settings.system.sharding.busy_poll_us
    if not busy_poll_us:
        return []
    text = f"workers look for {format_duration_us(busy_poll_us)} before they sleep"
    if quota != float("inf"):
        return [warning("busy poll", text, "a CPU quota pays for it: set system.sharding.busy_poll to 0")]
    if not set(own) - set(cpus):
        meaning = "no CPU is left for doors and clients of this host: leave one out of system.sharding.cpu_allocation"
        return [warning("busy poll", text, meaning)]
    return [ok("busy poll", text, "each worker may use its CPU alone")]


def _numa(system: Path, cpus: list[int], bound: list[int]) -> Finding:
    try:
        nodes = read_nodes(system)
    except TopologyError as error:
        return ok("NUMA", str(error), "memory is taken where the kernel finds it")
    text = "; ".join(f"node {node.number}: CPU {format_list(node.cpus) or 'none'}" for node in nodes)
    used = {node.number for node in nodes if set(node.cpus) & set(cpus)}
    if bound:
        return ok("NUMA", text, "memory of each shard is bound to its node")
    if len(used) > 1:
        return warning(
            "NUMA", text, 'shards on several nodes without bound memory: cpu_allocation = "numa:auto" binds it'
        )
    return ok("NUMA", text, "all shards are on one node: nothing to bind")


def _pool(settings: Settings, roots: Roots) -> list[Finding]:
    size, findings = settings.system.memory_pool_size_bytes, []
    try:
        shards = len(allocate_cpus(settings.system.sharding.cpu_allocation, system=roots.sys / "devices/system"))
        share = pool_share_bytes(size, shards)
        findings.append(
            ok("pool", f"{format_size(size)}, {format_size(share)} for each shard", "grows as it is touched")
        )
    except CpuAllocationError:
        pass  # has its own line
    except StartupError as error:
        findings.append(problem("pool", str(error), "the server would not start"))
    available, limit = _available_bytes(roots), memory_limit_bytes()
    text = f"{_gib(available)} available" + ("" if limit == float("inf") else f", control group limit {_gib(limit)}")
    room = min(available, limit)
    if size > room:
        meaning = "less than system.memory_pool.size: under load the kernel may kill a worker; lower the pool"
        findings.append(warning("memory", text, meaning))
    else:
        findings.append(ok("memory", text, "holds the whole pool; the rest serves as page cache for reads"))
    return findings


def _available_bytes(roots: Roots) -> float:
    return _meminfo(roots).get("MemAvailable", float("inf"))


def _meminfo(roots: Roots) -> dict[str, float]:
    lines = (line.split() for line in (roots.read(roots.proc / "meminfo") or "").splitlines())
    numbers = ((words[0].rstrip(":"), number_of(words[1])) for words in lines if len(words) > 1)
    return {name: number * 1024.0 for name, number in numbers if number is not None}


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _swap(roots: Roots) -> Finding:
    memory = _meminfo(roots)
    total = memory.get("SwapTotal", 0.0)
    if not total:
        return ok("swap", "none", "buffers stay in memory")
    used = total - memory.get("SwapFree", total)
    swappiness = roots.read(roots.proc / "sys/vm/swappiness") or "?"
    text = f"{_gib(total)}, {_gib(used)} in use, vm.swappiness {swappiness}"
    return warning(
        "swap", text, "pool and heap may be swapped out: answers then wait for the disk; turn it off or swappiness to 1"
    )


def _clock(roots: Roots) -> list[Finding]:
    source = roots.read(roots.sys / "devices/system/clocksource/clocksource0/current_clocksource") or "not known"
    if source in _SLOW_CLOCKS:
        first = warning("clock source", source, "each reading takes microseconds; tsc or kvm-clock take nanoseconds")
    else:
        first = ok("clock source", source, "read without a system call")
    now, made = time.time(), Path(shardd.__file__).stat().st_mtime
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < made:
        return [first, warning("wall clock", text, "earlier than this installation: message timestamps would be wrong")]
    synchronised = clock_is_synchronised()
    if synchronised is None:
        return [first, ok("wall clock", text, "the kernel does not tell whether it is synchronised")]
    if not synchronised:
        meaning = (
            "not synchronised: message timestamps and expiry follow a drifting clock; run chrony or another NTP client"
        )
        return [first, warning("wall clock", text, meaning)]
    return [first, ok("wall clock", f"{text}, synchronised", "message timestamps and expiry follow it")]


def clock_is_synchronised() -> bool | None:
    """As adjtimex tells; None where it is forbidden."""
    timex = ctypes.create_string_buffer(512)  # struct timex with modes 0: only reads
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        return None
    (status,) = struct.unpack_from("i", timex, 40)
    return state != _TIME_ERROR and not status & _STA_UNSYNC
