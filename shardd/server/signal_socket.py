"""Signals as bytes on a socket, for a loop that waits in a selector."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def wakeup_socket(numbers: Sequence[signal.Signals]) -> Iterator[socket.socket]:
    """Gets a byte, the number of the signal, for each of these signals."""
    read_end, write_end = socket.socketpair()
    read_end.setblocking(False)
    write_end.setblocking(False)
    # a signal that nohup made ignored stays ignored
    taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda *_: None) for number in taken}
    previous_fd = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        read_end.close()
        write_end.close()


def holds_any_of(wakeup: socket.socket, numbers: Sequence[signal.Signals]) -> bool:
    """Whether one of these signals waits there; it stays."""
    try:
        waiting = wakeup.recv(64, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return any(number in waiting for number in numbers)
