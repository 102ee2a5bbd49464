"""Checks of `shardd doctor`: data directory, file system, device, address. They change nothing that a server uses."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from shardd.cli.doctor.report import Finding, Level, Roots, ok, problem, warning
from shardd.config.schema import Settings, Tcp
from shardd.config.units import format_size
from shardd.server.address_lock import is_locked
from shardd.server.data_directory import LOCK_NAME
from shardd.server.listeners import server_answers

_SYNCS: Final = 20
_SYNC_SLOW_US: Final = 50_000
_SYNC_FAST_US: Final = 20
_INODES_MIN: Final = 1000
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_PAGE: Final = mmap.PAGESIZE

_FILE_SYSTEMS: Final = {
    "ext4": (Level.OK, "well suited"),
    "xfs": (Level.OK, "well suited"),
    "btrfs": (
        Level.OK,
        "works; copy on write makes appends and syncs slower, `chattr +C` on the empty directory helps",
    ),
    "zfs": (Level.OK, "works"),
    "overlay": (Level.WARNING, "the container's own layer: gone with the container; mount a volume"),
    "tmpfs": (Level.WARNING, "memory: everything is gone after a reboot, and it counts as memory of the container"),
    "ramfs": (Level.WARNING, "memory: everything is gone after a reboot"),
    "nfs": (
        Level.WARNING,
        "network: locks, sync and the durability of renames depend on the other side; use a local disk",
    ),
    "nfs4": (
        Level.WARNING,
        "network: locks, sync and the durability of renames depend on the other side; use a local disk",
    ),
    "cifs": (Level.WARNING, "network: locks and sync depend on the other side; use a local disk"),
    "9p": (Level.WARNING, "shared with a host: locks and sync depend on it; use a local disk"),
    "virtiofs": (Level.WARNING, "shared with a host: locks and sync depend on it; use a local disk"),
    "fuse": (Level.WARNING, "a user-space file system: sync and locks depend on it"),
    "vfat": (Level.WARNING, "not made for this: use ext4 or xfs"),
}


def storage_findings(settings: Settings, roots: Roots) -> list[Finding]:
    directory = settings.system.data_directory
    holder = directory_holder(directory)
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    address, running = _address(settings.tcp)
    findings = [_directory(directory, existing, holder, running), _file_system(existing, roots)]
    if os.access(existing, os.W_OK | os.X_OK) and existing.is_dir():
        findings += _device(existing)
    findings += [_free_space(existing, settings.system.segment_size_bytes), _inodes(existing)]
    if running and holder:
        address = warning(address.check, address.finding, f"the server with process {holder} runs there already")
    return [*findings, address]


def directory_holder(directory: Path) -> str:
    """The process that holds the lock of the directory, or "". The lock is tried as a reader, for a moment."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(fd)
    return ""


def _directory(directory: Path, existing: Path, holder: str, running: bool) -> Finding:
    if holder:
        text = f"{directory} is in use by process {holder}"
        if running:
            return warning("data directory", text, "the server runs; a second one would not start")
        return problem("data directory", text, "one server for a directory: stop the other one or set system.path")
    if not existing.is_dir():
        return problem("data directory", f"{existing} is no directory", "set system.path to another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        return problem(
            "data directory", f"{existing} cannot be written", "give this user the right, or set system.path"
        )
    if existing != directory:
        return ok("data directory", f"{directory} does not exist yet", "the server makes it")
    return ok("data directory", f"{directory}, free", "can be opened")


def mount_of(path: Path, roots: Roots) -> tuple[str, str, str]:
    """(mount point, file system type, options) of what `path` lies on; empty texts when not known."""
    best, resolved = ("", "", ""), path.resolve()
    for line in (roots.read(roots.proc / "self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if resolved.is_relative_to(point) and len(point) >= len(best[0]):  # a later mount covers an earlier one
            best = (point, right.split()[0], fields[5])
    return best


def _file_system(existing: Path, roots: Roots) -> Finding:
    point, kind, options = mount_of(existing, roots)
    text = f"{kind or 'not known'} at {point or '?'} ({options})"
    if "ro" in options.split(","):
        return problem("file system", text, "read only: the server would not start")
    level, meaning = _FILE_SYSTEMS.get(kind.split(".")[0], (Level.OK, "not among those that were thought about"))
    return Finding("file system", level, text, meaning)


def _device(existing: Path) -> list[Finding]:
    """Syncs and cached reads on a file without a name."""
    try:
        with tempfile.TemporaryFile(dir=existing, buffering=0) as file:
            latencies = _sync_latencies_us(file.fileno())
            return [_sync_finding(latencies), _cached_read(file.fileno())]
    except OSError as error:
        return [problem("fdatasync", f"{existing}: {error.strerror}", "the server could not write there")]


def _sync_latencies_us(fd: int) -> list[float]:
    latencies: list[float] = []
    for position in range(_SYNCS):
        os.pwrite(fd, bytes(_PAGE), position * _PAGE)
        began = time.perf_counter_ns()
        os.fdatasync(fd)
        latencies.append((time.perf_counter_ns() - began) / 1000)
    return latencies


def _sync_finding(latencies_us: list[float]) -> Finding:
    median, longest = statistics.median(latencies_us), max(latencies_us)
    text = f"median {median:,.0f} us, longest {longest:,.0f} us of {len(latencies_us)} with 4 KiB each"
    if median > _SYNC_SLOW_US:
        return warning(
            "fdatasync", text, "slow: changes of metadata wait for it, and dirty data stays longer in memory"
        )
    if median < _SYNC_FAST_US:
        return ok(
            "fdatasync",
            text,
            "no device answers so fast: memory, or a host that only promises; a power cut may lose data",
        )
    return ok("fdatasync", text, "a change of metadata waits for one; sends do not")


def _cached_read(fd: int) -> Finding:
    try:
        os.preadv(fd, [bytearray(_PAGE)], 0, os.RWF_NOWAIT)
        text = "RWF_NOWAIT works"
        meaning = "cached messages are read without the ring"
    except BlockingIOError:
        text, meaning = "RWF_NOWAIT works", "cached messages are read without the ring"
    except OSError as error:
        text = f"RWF_NOWAIT: {error.strerror}"
        meaning = "every read goes through the ring, cached ones too: slower polls"
    direct = "O_DIRECT too" if _opens_direct(fd) else "O_DIRECT does not"
    return ok("cached reads", f"{text}, {direct}", f"{meaning}; O_DIRECT is not used")


def _opens_direct(fd: int) -> bool:
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _free_space(existing: Path, segment_size_bytes: int) -> Finding:
    stat = os.statvfs(existing)
    free = stat.f_bavail * stat.f_frsize
    share = free * 100 // max(1, stat.f_blocks * stat.f_frsize)
    text = f"{free / (1 << 30):.1f} GiB ({share} %)"
    if free < segment_size_bytes:
        meaning = f"less than one segment ({format_size(segment_size_bytes)}): sends will soon get status 10006"
        return warning("free space", text, meaning)
    return ok("free space", text, "when it is used up sends get status 10006 and reads go on")


def _inodes(existing: Path) -> Finding:
    stat = os.statvfs(existing)
    if stat.f_files == 0:
        return ok("free inodes", "no fixed number", "files are limited by space alone")
    if stat.f_favail < _INODES_MIN:
        return warning("free inodes", str(stat.f_favail), "a segment takes two: new segments and topics will fail")
    return ok("free inodes", str(stat.f_favail), "a segment takes two")


def _address(tcp: Tcp) -> tuple[Finding, bool]:
    """The finding, and whether a shardd server holds the address."""
    if tcp.port == 0:
        return ok("address", tcp.address, "the kernel gives a free port; current_config.toml names it"), False
    if is_locked(tcp.address):
        return problem("address", f"{tcp.address} is held by a shardd server", "stop it or set tcp.address"), True
    family = socket.AF_INET6 if ":" in tcp.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((tcp.host, tcp.port))  # without listen it takes no connection from anybody
        except OSError as error:
            text = os.strerror(error.errno or errno.EINVAL)
            return problem("address", f"{tcp.address}: {text}", "set tcp.address, or end what uses it"), False
    if server_answers(tcp.host, tcp.port):
        return problem("address", f"a server answers at {tcp.address}", "stop it or set tcp.address"), False
    return ok("address", f"{tcp.address} is free", "clients connect there"), False
