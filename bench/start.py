"""`python -m bench.start`: how soon a server of two shards answers after its start, how soon a killed worker is back,
what the idle server has in memory, and what it has cost. With `--before COMMAND` another build in the same rounds, such
as `.venv/bin/shardd` of a clone at an earlier commit."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from bench import lines
from bench.report import markdown_table
from bench.wire import Wire, WireError, send_request

ROUNDS: Final = 10
SHARDS: Final = 2  # what the targets are for
IDLE_S: Final = 2.0
_TIMEOUT_S: Final = 30.0
_PING: Final = bytes.fromhex("0400000001000000")
_PONG_BYTES: Final = 8
SEND: Final = 101
COLUMNS: Final = ("line", "what", "median [least..most]", "target")
# line of `make bench`, what is measured, its unit, and its target
FIGURES: Final = (
    ("start-first", "first start: answers after", "ms", 250.0),
    ("start-later", "later start: answers after", "ms", 250.0),
    ("start-killed-worker", "a killed worker answers again after", "ms", 150.0),
    ("start-memory", "idle, PSS of all processes", "MiB", 70.0),
    ("start-memory", "idle, RSS of all processes", "MiB", None),
    ("start-later", "CPU time of a later start, all processes", "ms", None),
)


def free_port() -> int:
    """Not one that the kernel gives to connections: who asks for an answer over and over would meet himself there."""
    for port in range(20_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


class Started:
    """A server that answers. `answered_s`: since it was started. RuntimeError when it does not."""

    def __init__(
        self, command: str, directory: Path, shards: int = SHARDS, settings: Mapping[str, str] | None = None
    ) -> None:
        self._shards = shards
        self.port = free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
        environment |= dict(settings or {}) | {
            "SHARDD_TCP_ADDRESS": f"127.0.0.1:{self.port}",
            "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(shards),
            "SHARDD_SYSTEM_PATH": str(directory),
        }
        began = time.monotonic()
        self.process = subprocess.Popen(
            [*shlex.split(command), "serve", "--with-default-root-credentials"],
            env=environment,
            cwd=directory.parent,  # early builds import from the current directory: theirs, not this checkout's
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_for_answer()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.answered_s = time.monotonic() - began

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S) as probe:
                    probe.sendall(_PING)
                    if len(probe.recv(_PONG_BYTES)) == _PONG_BYTES:
                        return
            except OSError:
                time.sleep(0.001)
        raise RuntimeError("no answer to a PING")

    def processes(self) -> list[psutil.Process]:
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def cpu_s(self) -> float:
        return sum(each.cpu_times().user + each.cpu_times().system for each in self.processes())

    def back_after_s(self, shard: int) -> float:
        """From the kill of a worker until a send to its partition is answered."""
        with Wire(self.port) as wire:
            stream = next(
                stream
                for stream in (wire.create_stream(f"start-{number}") for number in range(64))
                if lines.owner(stream, self._shards) == shard
            )
            wire.create_topic(stream, "t", 1)
        (victim,) = [each for each in self.processes() if "".join(each.cmdline()).strip() == f"shardd: shard {shard}"]
        os.kill(victim.pid, signal.SIGKILL)
        began = time.monotonic()
        while time.monotonic() - began < _TIMEOUT_S:
            try:
                with Wire(self.port) as wire:
                    wire.request(SEND, send_request(stream, b"x"))
                    return time.monotonic() - began
            except (OSError, WireError):
                time.sleep(0.001)
        raise RuntimeError("the worker does not come back")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(_TIMEOUT_S)


def measure(
    command: str,
    base: Path,
    shards: int = SHARDS,
    idle_s: float = IDLE_S,
    settings: Mapping[str, str] | None = None,
) -> list[float]:
    """A value for each of FIGURES."""
    directory = base / "data"
    first = Started(command, directory, shards, settings)
    first.stop()
    later = Started(command, directory, shards, settings)
    try:
        time.sleep(idle_s)
        memory = [each.memory_full_info() for each in later.processes()]
        cpu_s, back_s = later.cpu_s(), later.back_after_s(shards - 1)
    finally:
        later.stop()
        shutil.rmtree(directory)
    mebibytes = [sum(each) / (1 << 20) for each in ([one.pss for one in memory], [one.rss for one in memory])]
    return [first.answered_s * 1e3, later.answered_s * 1e3, back_s * 1e3, *mebibytes, cpu_s * 1e3]


def run_rounds(
    commands: Mapping[str, str],
    base: Path,
    rounds: int,
    shards: int = SHARDS,
    idle_s: float = IDLE_S,
    settings: Mapping[str, str] | None = None,
) -> dict[str, list[list[float]]]:
    """By name of a build, its values of each round."""
    found: dict[str, list[list[float]]] = {name: [] for name in commands}
    for number in range(rounds):
        for name, command in sorted(commands.items(), reverse=number % 2 == 1):
            found[name].append(measure(command, base, shards, idle_s, settings))
    return found


def rows(found: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str], shards: int = SHARDS) -> list[list[str]]:
    """A row for each figure of the lines `names`: the line, what it is, a cell for each build, its target. None without
    a round."""
    out: list[list[str]] = []
    if not found["shardd"]:
        return out
    for at, (line, what, unit, target) in enumerate(FIGURES):
        if line not in names:
            continue
        columns = [[each[at] for each in rounds] for rounds in found.values()]
        cells = [f"{statistics.median(each):.0f} {unit} [{min(each):.0f}..{max(each):.0f}]" for each in columns]
        middle = statistics.median([each[at] for each in found["shardd"]])
        held = "" if target is None or shards != SHARDS else f"<= {target:.0f} {unit}: {_word(middle <= target)}"
        out.append([line, what, *cells, held])
    return out


def _word(held: bool) -> str:
    return "met" if held else "NOT met"


def own_command() -> str:
    """The shardd beside this interpreter."""
    return str(Path(sys.executable).with_name("shardd"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--before", metavar="COMMAND", help="another build")
    options = parser.parse_args()
    commands = {"shardd": own_command()} | ({"before": options.before} if options.before else {})
    with tempfile.TemporaryDirectory(prefix="shardd-start-") as base:
        found = run_rounds(commands, Path(base), options.rounds)
    print(f"{options.rounds} rounds, {SHARDS} shards, medians [least..most]; load {os.getloadavg()[0]:.1f}\n")
    print(markdown_table(("line", "what", *commands, "target"), rows(found, lines.STARTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
