"""The life of a door's process: it belongs to its supervisor, tells it that it lives, and ends when it says so."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import setproctitle

from shardd.doors.door import Door
from shardd.observability.logs import set_up_logs
from shardd.runtime.bounded_loop import Progress, run_bounded
from shardd.runtime.collector import Collector
from shardd.runtime.control_link import ControlLink
from shardd.runtime.inheritance import DoorInheritance, read_inheritance
from shardd.runtime.large_blocks import give_back_large_blocks
from shardd.runtime.supervised import die_with, ignore_signals
from shardd.runtime.time_slice import ask_for_long_slices

NICE: Final = 12  # a door gives way to the workers, and to their clients on the same machine (docs/adr/0086)
GROWTH_BLOCKS_MIN: Final = 250_000  # 25 MB: connections leave cycles, of those for QUIC each some KB
ALL_AFTER_S: Final = 60.0  # all objects of a door are looked at once in that time, 10 to 15 ms for 100,000
_log = logging.getLogger(__name__)


def run_door(serve: Callable[[Door], Awaitable[None]]) -> None:
    """The whole process. `serve` opens what clients connect to, calls `Door.ready`, and serves until it is cancelled.
    The last argument of the command line is the descriptor with the inheritance."""
    ignore_signals()
    inheritance = read_inheritance(int(sys.argv[-1]), DoorInheritance)
    die_with(inheritance.supervisor_pid)
    set_up_logs(f"door-{inheritance.name}", inheritance.logging.level, inheritance.logging.format)
    setproctitle.setproctitle(f"shardd: door {inheritance.name}")
    if inheritance.cpus:
        os.sched_setaffinity(0, inheritance.cpus)
    give_way()
    give_back_large_blocks()
    gc.freeze()  # modules stay: no collection looks at them
    status = 0
    try:
        run_bounded(lambda progress: _main(inheritance, serve, progress))
    except Exception:
        _log.exception("the door ends")
        status = 1
    logging.shutdown()
    os._exit(status)


def give_way() -> None:
    os.nice(NICE)
    ask_for_long_slices()


async def _main(inheritance: DoorInheritance, serve: Callable[[Door], Awaitable[None]], progress: Progress) -> None:
    control = ControlLink(
        inheritance.control_fd,
        peer_down=lambda shard: None,  # its connection ends by itself
        peer_up=lambda shard, generation: None,
        peer_key=lambda key: door.renew(key),
        stalls=lambda stalls: door.hear_stalls(stalls),
        tls=lambda: door.tls_changed(),
        progress=progress,
    )
    collector = Collector(asyncio.get_running_loop(), GROWTH_BLOCKS_MIN, ALL_AFTER_S)

    def ready() -> None:
        progress.is_watched = True
        gc.enable()  # it was off from the start on (start.py)
        collector.start()  # what the door needs to serve is there: no collection looks at it again
        control.ready()

    listeners = [socket.socket(fileno=fd) for fd in inheritance.listener_fds]
    for listener in listeners:
        listener.set_inheritable(False)
        listener.setblocking(False)
    door = Door(
        inheritance.trust,
        inheritance.shards,
        ready,
        listeners,
        inheritance.options,
        inheritance.tls_fd,
        inheritance.addresses,
    )
    serving = asyncio.ensure_future(serve(door))
    stop = asyncio.ensure_future(control.stop_requested())
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()  # its exception is the end of this process
        raise RuntimeError("the door has stopped to serve by itself")
    serving.cancel()
    await asyncio.wait({serving}, timeout=stop.result())
    await door.close()
    control.close()
