"""Processes of the native load engine: each has some of the actors on its connections."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import signal
import string
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any, Final, TypeAlias

from shardd.benchmark import _load
from shardd.benchmark.options import BenchError, Options, Progress, Watch
from shardd.benchmark.plan import (
    SLOT_BYTES,
    SLOT_MESSAGES,
    SLOT_READY,
    SLOT_START_NS,
    SLOT_STOP,
    SLOT_WORST_NS,
    SLOTS_FIXED,
    Actor,
    Plan,
)
from shardd.benchmark.reopen import Reopening
from shardd.benchmark.servers.base import Places, Server
from shardd.benchmark.servers.connection import Connection
from shardd.client.errors import ClientError

LOOK_INTERVAL_S: Final = 0.25
_READY_TIMEOUT_S: Final = 60.0

Process: TypeAlias = tuple[Any, Pipe]


@dataclass(frozen=True)
class Share:
    """What one process did. `waited_ns`: it could run, but another had its CPU. `interrupted_ns`: the longest time from
    a broken connection to the next answer of its actor."""

    records: list[bytes]
    cpu_ns: int
    wall_ns: int
    waited_ns: int
    empty_polls: int
    sent_bytes: int = 0
    received_bytes: int = 0
    broken: int = 0
    refused: int = 0
    sent_again: int = 0
    interrupted_ns: int = 0


@dataclass(frozen=True)
class Done:
    """`records` by actor of the plan: seven numbers for each batch (native/load/load.h)."""

    records: list[bytes]
    shares: list[Share]


def run(
    plan: Plan,
    server: Server,
    places: Places,
    watch: Watch | None = None,
    begin: Callable[[], None] | None = None,
) -> Done:
    """Connects, runs, and collects. `begin` is called when all connections are there. BenchError; KeyboardInterrupt
    ends all processes first."""
    count = plan.options.processes_used()
    slots = mmap.mmap(-1, max(mmap.PAGESIZE, 8 * len(plan.slots())))
    view = memoryview(slots).cast("q")
    view[: len(plan.slots())] = memoryview(struct.pack(f"<{len(plan.slots())}q", *plan.slots())).cast("q")
    dealt = [plan.actors[first::count] for first in range(count)]
    processes: list[Process] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # an interrupt is lost inside of fork()
    try:
        processes += [_start(plan, server, places, actors, slots) for actors in dealt]
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _begin(view, processes)
        if begin is not None:
            begin()
        if watch is not None:
            _look_on(plan, view, processes, watch)
        answers = [_answer(pipe) for _, pipe in processes]
    finally:
        view[SLOT_STOP] = 1
        for process, _ in processes:
            process.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    faults = [answer for answer in answers if isinstance(answer, str)]
    if faults:
        raise BenchError(next((fault for fault in faults if fault != "stopped"), faults[0]))
    shares = [answer for answer in answers if isinstance(answer, Share)]
    records = [b""] * len(plan.actors)
    for first, share in enumerate(shares):
        records[first::count] = share.records
    return Done(records, shares)


def _start(plan: Plan, server: Server, places: Places, actors: list[Actor], slots: mmap.mmap) -> Process:
    fork = multiprocessing.get_context("fork")  # the slots are shared
    mine, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(plan, server, places, actors, slots, theirs, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return process, mine


def _begin(view: memoryview, processes: list[Process]) -> None:
    """All at once, when all are ready."""
    until = time.monotonic() + _READY_TIMEOUT_S
    while view[SLOT_READY] < len(processes) and view[SLOT_STOP] == 0:
        if any(not process.is_alive() for process, _ in processes):
            break  # it has said why
        if time.monotonic() > until:
            raise BenchError(f"the connections were not there after {_READY_TIMEOUT_S:.0f} s")
        time.sleep(0.001)
    view[SLOT_START_NS] = time.monotonic_ns()


def _look_on(plan: Plan, view: memoryview, processes: list[Process], watch: Watch) -> None:
    """Until somebody answers."""
    begun, whole = time.monotonic() + plan.options.warmup_us / 1e6, sum(plan.budgets)
    while not wait([pipe for _, pipe in processes], LOOK_INTERVAL_S):
        left = sum(max(0, view[SLOTS_FIXED + at]) for at in range(len(plan.budgets)))
        worst_ms, view[SLOT_WORST_NS] = view[SLOT_WORST_NS] / 1e6, 0
        seconds = max(0.0, time.monotonic() - begun)
        watch(Progress(seconds, view[SLOT_MESSAGES], view[SLOT_BYTES], worst_ms, 1 - left / whole if whole else 0.0))
    watch(None)


def _answer(pipe: Pipe) -> Share | str:
    try:
        answer: Share | str = pipe.recv()
    except EOFError:
        return "a process of the load engine died"
    return answer


def _child(
    plan: Plan, server: Server, places: Places, actors: list[Actor], slots: mmap.mmap, pipe: Pipe, parent: int
) -> None:
    # interrupts stay blocked: the parent ends this by its slot
    try:
        if plan.options.client_cpus:
            os.sched_setaffinity(0, plan.options.cpus_of(plan.options.client_cpus))
        with _connections(plan.options, server, actors) as connections:
            packed = b"".join(
                plan.packed(
                    actor,
                    each.fileno(),
                    places.streams[actor.stream],
                    places.topics[actor.stream],
                    places.groups.get(actor.group, 0),
                    server.dialect_of(plan.options),
                    getattr(each, "session", (0, 0, 0, 0)),
                )
                for actor, each in zip(actors, connections, strict=True)
            )
            payload = _payload(plan.options.message_size.most)
            channels: list[object] = [getattr(each, "capsule", None) for each in connections]
            given = (slots, packed, payload, plan.options.warmup_us * 1000, parent, channels)
            if not plan.options.reopens:
                pipe.send(Share(*_load.run(*given)))
                return
            reopening = Reopening(
                lambda index: server.open(plan.options, actors[index]), connections, channels, lambda: _stop(slots)
            )
            try:
                with reopening:
                    pipe.send(Share(*_load.run(*given, reopening.broken_fd, reopening.opened_fd)))
            except RuntimeError as error:
                raise BenchError(reopening.fault or str(error)) from error
    except (BenchError, ClientError, OSError, RuntimeError) as error:
        _stop(slots)
        pipe.send(str(error))


def _stop(slots: mmap.mmap) -> None:
    memoryview(slots).cast("q")[SLOT_STOP] = 1


def _payload(size_bytes: int) -> bytes:
    piece = "".join(random.choices(string.ascii_letters + string.digits, k=min(size_bytes, 1 << 20)))
    return (piece * (size_bytes // max(1, len(piece)) + 1))[:size_bytes].encode()


@contextmanager
def _connections(options: Options, server: Server, actors: list[Actor]) -> Iterator[list[Connection]]:
    """Ready for the first request."""
    sockets: list[Connection] = []
    try:
        for actor in actors:
            sockets.append(server.open(options, actor))
            sockets[-1].setblocking(False)
        yield sockets
    finally:
        for each in sockets:
            each.close()
