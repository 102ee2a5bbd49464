"""What the members of a snapshot hold (docs/protocol/system.md#get-snapshot). Plain functions that block: helper
threads only.

Nothing here runs another program, and no text holds a secret: settings are masked, processes are listed by name.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

ENTRIES_MAX: Final = 10_000  # of the data directory, and processes
_MASKED: Final = '"******"'
_SETTING: Final = re.compile(r"^(\s*([\w.\-]+)\s*=\s*)(.*)$")
_SECRET_NAME: Final = re.compile(r"(^|_)(password|passphrase|secret|token|key)$")
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def mask_secrets(settings: str) -> str:
    """TOML text with the values of keys that name a secret, and passwords inside addresses, replaced."""
    lines = []
    for line in settings.splitlines():
        setting = _SETTING.match(line)
        if setting is not None and _SECRET_NAME.search(setting[2].lower()):
            line = setting[1] + _MASKED
        lines.append(_URL_PASSWORD.sub(r"\1******@", line))
    return "\n".join(lines) + "\n"


def server_config(runtime_config: Path) -> str:
    """The settings in effect. OSError."""
    return mask_secrets(runtime_config.read_text())


def filesystem_overview(data: Path) -> str:
    """The device of the data directory and every file below it with its size."""
    usage = shutil.disk_usage(data)
    head = f"{data}: {usage.total} bytes in all, {usage.free} free\n"
    files = list(itertools.islice(_files(data), ENTRIES_MAX + 1))
    note = f"... and more than these {ENTRIES_MAX}\n" if len(files) > ENTRIES_MAX else ""
    return head + "".join(f"{size:>14} {path}\n" for path, size in files[:ENTRIES_MAX]) + note


def _files(directory: Path) -> Iterator[tuple[str, int]]:
    for parent, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(names):
            path = Path(parent) / name
            try:
                yield str(path.relative_to(directory)), path.lstat().st_size
            except OSError:  # gone meanwhile
                continue


def process_list() -> str:
    """Processes by id, without their arguments."""
    lines = [f"{'pid':>8} {'parent':>8} {'threads':>8} {'memory':>14} {'cpu seconds':>12} name"]
    for process in itertools.islice(psutil.process_iter(), ENTRIES_MAX):
        try:
            with process.oneshot():
                times = process.cpu_times()
                lines.append(
                    f"{process.pid:>8} {process.ppid():>8} {process.num_threads():>8} "
                    f"{process.memory_info().rss:>14} {times.user + times.system:>12.1f} {process.name()}"
                )
        except psutil.Error:  # gone, or not ours to look at
            continue
    return "\n".join(lines) + "\n"


def resource_usage() -> str:
    """Machine first, then this server's processes: this worker's supervisor and its children."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    lines = [
        f"time {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
        f"system {platform.platform()}",
        f"load {' '.join(f'{load:.2f}' for load in os.getloadavg())}",
        f"cpu percent {' '.join(f'{percent:.1f}' for percent in psutil.cpu_percent(0.1, percpu=True))}",
        f"memory {memory.total} bytes, {memory.available} available",
        f"swap {swap.total} bytes, {swap.used} used",
    ]
    try:
        supervisor = psutil.Process(os.getppid())
        for process in (supervisor, *supervisor.children(recursive=True)):
            lines.append(f"process {process.pid}: {process.memory_info().rss} bytes, {process.num_threads()} threads")
    except psutil.Error:
        lines.append("the processes of this server are changing")
    return "\n".join(lines) + "\n"
