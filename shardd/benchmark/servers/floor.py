"""The floor: the least that a server of this wire can do, in C (native/load/floor.c), in a process of its own."""

from __future__ import annotations

import array
import multiprocessing
import os
import signal
import socket
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING

from shardd.benchmark import _load
from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import STOP_TIMEOUT_S, Places, Started, same_places
from shardd.benchmark.servers.connection import Control
from shardd.benchmark.servers.wire import log_in

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor


class Floor(Started):
    """Files by stream and partition, no groups; all messages of a file have one size."""

    name = "floor"

    def __init__(self) -> None:
        super().__init__()
        self._child: ForkProcess | None = None

    def check(self, options: Options) -> None:
        if options.kind.groups is not None and options.kind.polls:
            raise BenchError(f"the floor has no consumer groups: {options.kind.name} is not for it")
        sizes = options.message_size
        if options.kind.polls and sizes.least != sizes.most:
            raise BenchError("the floor finds messages by their size: let --message-size be one number")
        if options.streams >= 4096:
            raise BenchError("the floor has less than 4096 streams")

    def start(self, options: Options) -> None:
        directory = self.make_directory(options)
        self.version = "the bare server in C"
        durable = options.durability == "durable"
        self.durability = "fdatasync before each answer" if durable else "written to the file, never synced"
        cpus = sorted(os.sched_getaffinity(0))
        if options.server_cpus:
            cpus = options.cpus_of(options.server_cpus)
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = listener.getsockname()[1]
        pinned = array.array("i", cpus[:16]).tobytes()
        context = multiprocessing.get_context("fork")
        self._child = context.Process(target=_serve, args=(listener, str(directory), pinned, durable), daemon=True)
        self._child.start()
        listener.close()
        self.process_id = self._child.pid or 0

    def is_running(self) -> bool:
        return self._child is not None and self._child.is_alive()

    def prepare(self, options: Options) -> Places:
        return same_places(options)

    def open(self, options: Options, actor: Actor) -> socket.socket:
        made = self.connect()
        log_in(Control(made), options)
        return made

    def stop(self) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.join(STOP_TIMEOUT_S)
            if self._child.is_alive():
                self._child.kill()
                self._child.join()
        self._child = None
        super().stop()


def _serve(listener: socket.socket, directory: str, cpus: bytes, sync: bool) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load.floor(listener.fileno(), directory, cpus, sync)
