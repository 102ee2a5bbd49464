"""Commands of the command line as forks of one process that has imported them: a machine starts thousands.

    python -P -m tests.models.commands DESCRIPTOR    a message of the socket for each: JSON, and its descriptors

A fork has the descriptors, the words and the process id of a command of its own, and ends as one."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final, NamedTuple

_WORDS_BYTES_MAX: Final = 1 << 16
_DESCRIPTORS: Final = 4  # standard input, output, error; the end of the last one's pipe is that of the command


class Ended(NamedTuple):
    """`status`: negative for a signal, as of `subprocess`."""

    status: int
    stdout: bytes
    stderr: bytes


class Running:
    """A command. `stdout` is to be read by the caller, who closes by `end`."""

    def __init__(self, process_id: int, stdout: int, told: int) -> None:
        self.process_id, self.stdout, self._told = process_id, stdout, told

    def end(self, timeout_s: float) -> None:
        """It is terminated if it has not ended."""
        if not select.select([self._told], [], [], 0)[0]:
            os.kill(self.process_id, signal.SIGTERM)
        status_told(self._told, timeout_s)
        os.close(self.stdout)


def status_told(told: int, timeout_s: float) -> int:
    """TimeoutError."""
    if not select.select([told], [], [], timeout_s)[0]:
        raise TimeoutError("the command does not end")
    said = os.read(told, 4)
    os.close(told)
    return int(said) if said else -signal.SIGTERM


class Commands:
    """Of one server. `close` ends the process."""

    def __init__(self, url: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.models.commands", str(theirs.fileno())],
            env=kept | {"SHARDD_URL": url, "PYTHONPATH": root},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _begun(self, words: tuple[str, ...], stdin: int, stdout: int, stderr: int) -> tuple[int, int]:
        """Its process id, and where its status is told."""
        told, theirs = os.pipe()
        socket.send_fds(self._socket, [json.dumps(words).encode()], [stdin, stdout, stderr, theirs])
        os.close(theirs)
        return int(self._socket.recv(32)), told

    def start(self, *words: str) -> Running:
        """Its standard error is its standard output."""
        ours, theirs = os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            process_id, told = self._begun(words, nothing.fileno(), theirs, theirs)
        os.close(theirs)
        return Running(process_id, ours, told)

    def run(self, *words: str, given: bytes = b"", timeout_s: float) -> Ended:
        """TimeoutError."""
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to), (out, stdout), (error, stderr) = pipes
        _, told = self._begun(words, stdin, stdout, stderr)
        for each in (stdin, stdout, stderr):
            os.close(each)
        said = _exchanged(to, given, (out, error), time.monotonic() + timeout_s)
        return Ended(status_told(told, timeout_s), said[out], said[error])


def _exchanged(to: int, given: bytes, outputs: tuple[int, int], until: float) -> dict[int, bytes]:
    """Writes all of the input, and reads to the ends of the outputs. All are closed."""
    said, left = dict.fromkeys(outputs, b""), memoryview(given)
    reading, writing = set(outputs), {to}
    os.set_blocking(to, False)
    while reading or writing:
        readable, writable, _ = select.select(reading, writing, [], max(0.0, until - time.monotonic()))
        if not readable and not writable:
            raise TimeoutError("the command does not end")
        for each in readable:
            found = os.read(each, 1 << 20)
            said[each] += found
            if not found:
                reading.remove(each)
                os.close(each)
        if writable:
            try:
                left = left[os.write(to, left) :] if left else left
            except BrokenPipeError:
                left = left[:0]
            if not left:
                writing.remove(to)
                os.close(to)
    return said


# ---- the process that has imported everything ----


def _carry_out(words: list[str], descriptors: list[int]) -> None:
    """In the fork. Does not come back."""
    status: Any = 1
    try:
        for number, each in enumerate(descriptors[: _DESCRIPTORS - 1]):
            os.dup2(each, number)
            os.close(each)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv = ["shardd", *words]
        importlib.import_module("shardd.cli.start").main()
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # as the interpreter shows it
        os.write(2, traceback.format_exc().encode())
    finally:
        code = status if isinstance(status, int) else 0 if status is None else 1
        os.write(descriptors[-1], b"%d" % code)
        os._exit(code)


def _import_all() -> None:
    import asyncio  # noqa: F401

    import shardd.cli
    import shardd.client

    for package in (shardd.client, shardd.cli):
        for each in pkgutil.iter_modules(package.__path__):
            if each.name != "arrow":  # wants a package
                importlib.import_module(f"{package.__name__}.{each.name}")


def _main() -> None:
    asking = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        said, descriptors, _, _ = socket.recv_fds(asking, _WORDS_BYTES_MAX, _DESCRIPTORS)
        if not said:
            return
        child = os.fork()
        if child == 0:
            asking.close()
            _carry_out(json.loads(said), descriptors)
        for each in descriptors:
            os.close(each)
        asking.send(b"%d" % child)


if __name__ == "__main__":
    _main()
