"""`python -m bench.write_path DIR...`: system calls against io_uring on the file systems of the directories.

The table that docs/adr/0002-write-path.md decides from. `--xfs` adds an XFS in a loop file beside the first directory
(root and mkfs.xfs needed).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import report
from bench.native_build import build

XFS_IMAGE_BYTES = 4 << 30
RUN_TIMEOUT_S = 900
WAYS = ("pwritev", "preadv2 NOWAIT", "fdatasync")  # the system call; the other one is always `ring`
COLUMNS = (
    "operation",
    "bytes",
    "in flight",
    "system call us",
    "ring us",
    "ring / call",
    "call CPU us",
    "ring CPU us",
    "NOWAIT refused",
)


@contextlib.contextmanager
def xfs_in_a_file(beside: Path) -> Iterator[Path]:
    """A mounted XFS that is gone afterwards; CalledProcessError or FileNotFoundError when it cannot be made."""
    with tempfile.TemporaryDirectory(prefix="shardd-xfs-", dir=beside) as base:
        image, mount_point = Path(base) / "image", Path(base) / "mounted"
        mount_point.mkdir()
        with image.open("wb") as file:
            file.truncate(XFS_IMAGE_BYTES)
        subprocess.run(["mkfs.xfs", "-q", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount_point)], check=True)
        try:
            yield mount_point
        finally:
            _unmount(mount_point)


def _unmount(mount_point: Path) -> None:
    """The kernel lets go of files registered in a ring a moment after its process has ended: tries for 10 s."""
    for _ in range(100):
        if subprocess.run(["umount", str(mount_point)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise OSError(f"{mount_point} cannot be unmounted")


def measure(directory: Path, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Every round of every measurement, as bench/native/write_path.c prints them. RuntimeError with its words."""
    command = [str(build("write_path")), str(directory), "--rounds", str(rounds), *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return [json.loads(text) for text in done.stdout.splitlines()]


def rows(raw: list[dict[str, Any]]) -> list[list[str]]:
    """Medians over the rounds, one row for each operation and size."""
    groups: dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]] = {}
    for entry in raw:
        way = "ring" if entry["way"] == "ring" else "call"
        key = (entry["operation"], entry["bytes"], entry["files"])
        groups.setdefault(key, {"ring": [], "call": []})[way].append(entry)
    out = []
    for (operation, size, files), ways in groups.items():

        def middle(way: str, key: str, ways: dict[str, list[dict[str, Any]]] = ways) -> float:
            return statistics.median(float(entry[key]) for entry in ways[way])

        call, ring = middle("call", "us_per_op"), middle("ring", "us_per_op")
        cpu = [f"{middle(way, 'cpu_us_per_op'):.2f}" for way in ("call", "ring")]
        refused = f"{middle('call', 'refused_share'):.0%}" if operation.startswith("read") else ""
        out.append(
            [operation, str(size), str(files), f"{call:.2f}", f"{ring:.2f}", f"{ring / call:.2f}", *cpu, refused]
        )
    return out


def main(words: list[str] | None = None) -> int:
    """Prints one table for each file system; 1 when one could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.write_path", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few operations: shows that all works")
    parser.add_argument("--xfs", action="store_true", help="also on an XFS in a loop file")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(words)
    table = report.markdown_table if options.markdown else report.text_table
    print("\n".join(f"{key}: {value}" for key, value in report.machine(options.directories[0]).items()))
    failed = False
    with contextlib.ExitStack() as mounted:
        directories: list[Path] = list(options.directories)
        try:
            if options.xfs:
                directories.append(mounted.enter_context(xfs_in_a_file(options.directories[0])))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"\nXFS not measured: {error}", file=sys.stderr)
            failed = True
        for directory in directories:
            try:
                raw = measure(directory, options.rounds, options.quick)
            except RuntimeError as error:
                print(f"\n{report.file_system(directory)} not measured: {error}", file=sys.stderr)
                failed = True
                continue
            print(f"\n{report.file_system(directory)}, median of {options.rounds} rounds\n")
            print(table(COLUMNS, rows(raw)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
