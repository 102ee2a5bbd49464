"""What becomes of others beside one line: they go on, nothing is killed, memory has its bound."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tests.hostile.matrix.crowd import Order
from tests.hostile.matrix.door import Client
from tests.hostile.matrix.doors import QUIC, client_of, kernel_bytes_max
from tests.hostile.matrix.lines import Line
from tests.hostile.matrix.memory import QUIC_SHARE, process_bytes_max
from tests.hostile.matrix.report import Report
from tests.hostile.matrix.target import MatrixServer
from tests.support.memory import shared_out_bytes

READY_S: Final = 180.0  # a crowd at nice 19 on a busy machine
COME_BYTES_MAX: Final = 3 << 20  # of a connection: about half of what the kernel lets a receive buffer grow to
_PACE_S: Final = 0.005
_LOOK_S: Final = 0.25
_MEMORY: Final = re.compile(r"skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f(\d+),w(\d+),")  # come, sent, ahead, queued
_DEAD: Final = "gives no sign of life"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`process_bytes`: of all processes together, beyond what they had before the line; `process_bytes_ever`: beyond
    what they had when the server was new. `kernel_bytes_each`: of a connection, of what is sent to it."""

    stall_s: float = 60.0
    process_bytes: int | None = None  # None: that of the door
    process_bytes_ever: int = 640 << 20
    kernel_bytes_each: int | None = None  # None: that of the door
    rounds_min: int = 5
    seconds: float = 1.5


class Measured(msgspec.Struct, frozen=True):
    """`findings`: sentences; none: the line holds. Times in milliseconds, ascending."""

    findings: list[str]
    steady_ms: list[float]
    newcomers_ms: list[float]
    process_bytes: int
    kernel_bytes: int
    crowd: Report


class Probe(threading.Thread):
    """Asks until it is told to stop. `renews`: each time as a new client."""

    def __init__(self, name: str, make: Callable[[], Client], *, renews: bool) -> None:
        super().__init__(daemon=True)
        self.told = name
        self._make, self.renews = make, renews
        self.stopping = threading.Event()
        self.moved_s = time.monotonic()
        self.times_ms: list[float] = []
        self.failure = ""

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._serve_one_client()
        except Exception as failure:  # whatever its library has for it
            self.failure = f"{self.told} fails: {type(failure).__name__}: {str(failure)[:300]}"

    def _serve_one_client(self) -> None:
        began = time.perf_counter()
        client = self._make()
        try:
            while not self.stopping.is_set():
                if not self.renews:
                    began = time.perf_counter()
                client.ask()
                self.times_ms.append((time.perf_counter() - began) * 1000)
                self.moved_s = time.monotonic()
                time.sleep(_PACE_S)
                if self.renews:
                    return
        finally:
            client.close()


@dataclass(slots=True)
class Watch:
    """Processes and memory of a server since it was new."""

    server: MatrixServer
    rested_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.rested_bytes = shared_out_bytes(self.server.processes())

    def process_bytes(self) -> int:
        return shared_out_bytes(self.server.processes()) - self.rested_bytes

    def kernel_bytes(self, door: str) -> tuple[int, int]:
        """Of the server's sockets of this door, also of connections that have no process any more: what is sent, and
        what has come and is not read."""
        address = self.server.target.addresses[door]
        if door == "unix":
            told = _output("ss", "-xmnH", "state", "connected", "src", address)
        else:
            kind = "-umnH" if door == QUIC else "-tmnH"
            told = _output(
                "ss", kind, *(() if door == QUIC else ("state", "connected")), f"sport = :{address.rpartition(':')[2]}"
            )
        found = [[_signed(number) for number in each] for each in _MEMORY.findall(told)]
        return sum(sum(sent) for _, *sent in found), sum(come for come, *_ in found)


def _signed(number: str) -> int:
    """The kernel's figures of memory have 32 bits with a sign, which `ss` prints without."""
    return (int(number) + (1 << 31)) % (1 << 32) - (1 << 31)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def crowd_of(order: Order, report: list[Report]) -> Iterator[None]:
    """Beside it; what it has done is in `report` behind it. RuntimeError: it does not come up, or ended."""
    command = [sys.executable, "-m", "tests.hostile.matrix.crowd"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(READY_S, process.kill)
        late.start()
        try:
            process.stdin.write(msgspec.json.encode(order).decode() + "\n")
            process.stdin.flush()
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{order.line}: the crowd does not come up")
            late.cancel()
            yield
            if process.poll() is not None:
                raise RuntimeError(f"{order.line}: the crowd has ended with {process.returncode}")
        finally:
            late.cancel()
            with contextlib.suppress(OSError):
                process.stdin.close()
            ending = threading.Timer(READY_S, process.kill)
            ending.start()
            told = process.stdout.read()
            ending.cancel()
    report.append(msgspec.json.decode(told or "{}", type=Report))


def probes_of(server: MatrixServer, line: Line) -> list[Probe]:
    target = server.target
    kinds = [Probe(f"a client at {line.door}", lambda: client_of(line.door, target), renews=False)]
    kinds.append(Probe(f"a newcomer at {line.door}", lambda: client_of(line.door, target), renews=True))
    if line.door not in ("tcp", "tls"):
        kinds.append(Probe("a client at tcp", lambda: client_of("tcp", target), renews=False))
    return kinds


def judged(watch: Watch, line: Line, count: int, *, nice: int = 0, bounds: Bounds | None = None) -> Measured:
    """One line, once."""
    bounds, server = bounds or Bounds(), watch.server
    served, logged, rested_bytes = server.served(), len(server.log()), watch.process_bytes()
    count = max(1, count // QUIC_SHARE) if line.door == QUIC else count
    probes, findings = probes_of(server, line), list[str]()
    reports: list[Report] = []
    most_process = most_kernel = most_come = 0
    with crowd_of(Order(line.door, line.role, line.attack, count, nice, server.target), reports):
        for probe in probes:
            probe.moved_s = time.monotonic()
            probe.start()
        until_s = time.monotonic() + bounds.seconds
        while not findings and (
            time.monotonic() < until_s or any(len(each.times_ms) < bounds.rounds_min for each in probes)
        ):
            time.sleep(_LOOK_S)
            most_process = max(most_process, watch.process_bytes())
            sent, come = watch.kernel_bytes(line.door)
            most_kernel, most_come = max(most_kernel, sent), max(most_come, come)
            findings += _standing(probes, bounds)
        for probe in probes:
            probe.stopping.set()
        for probe in probes:
            probe.join(bounds.stall_s)
        findings += [said for said in _standing(probes, bounds) if said not in findings]
    findings += _killed(server, served, logged)
    findings += _too_much(line, bounds, count, most_process - rested_bytes, most_kernel, most_come)
    if most_process > bounds.process_bytes_ever:
        findings.append(f"processes have grown by {most_process >> 20} MiB since the server was new")
    crowd = reports[0]
    if crowd.entered == 0:
        findings.append("nobody of the crowd came in: the line shows nothing")
    steady = sorted(time_ms for probe in probes if not probe.renews for time_ms in probe.times_ms)
    grown = most_process - rested_bytes
    return Measured(findings, steady, sorted(probes[1].times_ms), grown, most_kernel, crowd)


def _standing(probes: list[Probe], bounds: Bounds) -> list[str]:
    found = [probe.failure for probe in probes if probe.failure]
    for probe in probes:
        if probe.is_alive() and (stood_s := time.monotonic() - probe.moved_s) > bounds.stall_s:
            found.append(f"{probe.told} has no answer for {stood_s:.0f} s")
    return found


def _killed(server: MatrixServer, served: dict[str, int], logged: int) -> list[str]:
    found = [f"{name} is another process" for name, pid in server.served().items() if served[name] != pid]
    return found + (["a process was taken for dead"] if _DEAD in server.log()[logged:] else [])


def _too_much(
    line: Line, bounds: Bounds, count: int, process_bytes: int, kernel_bytes: int, come_bytes: int
) -> list[str]:
    found = []
    process_max = process_bytes_max(line.door) if bounds.process_bytes is None else bounds.process_bytes
    if process_bytes > process_max:
        found.append(f"processes have grown by {process_bytes >> 20} MiB, {process_max >> 20} are the bound")
    each = kernel_bytes_max(line) if bounds.kernel_bytes_each is None else bounds.kernel_bytes_each
    if kernel_bytes > each * count:
        found.append(f"its sockets keep {kernel_bytes >> 10} KiB of answers, {each * count >> 10} are the bound")
    if come_bytes > COME_BYTES_MAX * count:
        found.append(f"its sockets keep {come_bytes >> 10} KiB that nobody reads")
    return found
