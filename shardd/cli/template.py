"""Entry point of the template of workers: `python -m shardd.cli.template <descriptor> <pid>`; only the supervisor
starts it (shardd/server/worker_template.py)."""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import os
import resource
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

import setproctitle

from shardd.cli import worker
from shardd.runtime.supervised import die_with, ignore_signals
from shardd.server.worker_template import ANSWER, DESCRIPTORS_AT_ONCE, REQUEST

_INTEGER_BYTES: Final = array.array("i").itemsize


class _Request(NamedTuple):
    """`numbers`: where the worker has to have the descriptors that came; the first is that of its inheritance."""

    limits: tuple[int, int]
    umask: int
    numbers: list[int]
    received: list[int]


def main() -> None:
    gc.disable()  # nothing is garbage, and looking at it would make pages of its own of those that workers share
    ignore_signals()
    channel, supervisor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    die_with(supervisor)
    setproctitle.setproctitle("shardd: template of workers")
    worker.import_all()
    gc.freeze()  # with the 70 KiB of garbage that imports leave: looking for them costs 25 ms of each start
    with contextlib.suppress(BrokenPipeError):  # the supervisor has refused its start, or has ended
        _serve(channel, supervisor)


def _serve(channel: socket.socket, supervisor: int) -> None:
    channel.send(ANSWER.pack(0))
    for request in _requests(channel):
        pid = _fork(channel, request, supervisor)
        for descriptor in request.received:
            os.close(descriptor)
        channel.send(ANSWER.pack(pid))


def _requests(channel: socket.socket) -> Iterator[_Request]:
    """For workers, until the supervisor closes its end."""
    while True:
        numbers: list[int] = []
        received: list[int] = []
        while True:
            room = REQUEST.size + DESCRIPTORS_AT_ONCE * _INTEGER_BYTES
            data, fds, _, _ = socket.recv_fds(channel, room, DESCRIPTORS_AT_ONCE)
            if not data:
                return
            soft, hard, umask, in_all, here = REQUEST.unpack_from(data)
            if in_all == 0:
                worker.import_for_tokens()
                continue
            received += fds
            numbers += array.array("i", data[REQUEST.size : REQUEST.size + here * _INTEGER_BYTES])
            if len(numbers) >= in_all:
                break
        yield _Request((_signed(soft), _signed(hard)), umask, numbers, received)


def _signed(limit: int) -> int:
    return limit - 2**64 if limit >= 2**63 else limit


def _fork(channel: socket.socket, request: _Request, supervisor: int) -> int:
    """The pid, or an errno as a negative number. The worker is no child of this process: its parent ends at once, and
    the supervisor, which has asked the kernel for orphans, is the next one."""
    reads, writes = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(reads)
        os.close(writes)
        return -(error.errno or 1)
    if middle == 0:
        _in_the_middle(channel, request, supervisor, writes)
    os.close(writes)
    os.waitpid(middle, 0)
    answer = os.read(reads, ANSWER.size)
    os.close(reads)
    return ANSWER.unpack(answer)[0] if len(answer) == ANSWER.size else -1


def _in_the_middle(channel: socket.socket, request: _Request, supervisor: int, writes: int) -> NoReturn:
    own = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _become_a_worker(channel, request, supervisor, own)
        os.write(writes, ANSWER.pack(pid))
    except OSError as error:
        os.write(writes, ANSWER.pack(-(error.errno or 1)))
    finally:
        os._exit(0)


def _become_a_worker(channel: socket.socket, request: _Request, supervisor: int, first_parent: int) -> NoReturn:
    try:
        while (parent := os.getppid()) != supervisor:
            if parent != first_parent:  # the supervisor has died: it must not keep the directory from the next one
                os._exit(1)
            os.sched_yield()
        os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone
        os.umask(request.umask)
        channel.close()
        with contextlib.suppress(ValueError, OSError):  # the hard limit was raised since: only root can follow
            resource.setrlimit(resource.RLIMIT_NOFILE, request.limits)
        _place(request.received, request.numbers)
        worker.work(request.numbers[0])
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)


def _place(received: list[int], numbers: list[int]) -> None:
    """Each descriptor under its number; the others that this process has are closed."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in received]
    kept = {0, 1, 2, *moved}
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208 - and no Path for each
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)


if __name__ == "__main__":
    main()
