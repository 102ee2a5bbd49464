"""A process that has imported what a worker needs, and forks one when the supervisor asks for it: so a worker serves
sooner, and shares the memory of its modules with the others (docs/adr/0094-workers-are-forked.md).

It is started before anything secret is read and gets nothing but descriptors to hand on. Requests and answers are
datagrams of a socket pair, `REQUEST` and `ANSWER`; a request of many descriptors is several, each with its share. One
of no descriptors asks for no worker: `WorkerTemplate.sign_tokens`."""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

REQUEST: Final = struct.Struct("<QQIII")  # soft and hard limit of open files, umask, descriptors in all, those here
ANSWER: Final = struct.Struct("<q")  # a pid; 0: what a worker needs is imported; less: an errno
DESCRIPTORS_AT_ONCE: Final = 200  # the kernel takes 253
_MODULE: Final = "shardd.cli.template"
_WARM_TIMEOUT_S: Final = 30.0
_FORK_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 0.05  # between two looks whether the server is to end
_HIDDEN_VARIABLES: Final = ("NOTIFY_SOCKET", "SHARDD_", "IGGY_")  # beginnings: settings and passwords are inherited
_FOR_TESTS: Final = "SHARDD_TEST_"
_PR_SET_CHILD_SUBREAPER: Final = 36


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what is only for the supervisor, passwords above all."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FOR_TESTS) or not name.startswith(_HIDDEN_VARIABLES)
    }


class ForkedWorker:
    """A child of this process that the template has made."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """As subprocess gives it (negative: signal)."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Not yet waited for."""
        os.kill(self.pid, 9)


class WorkerTemplate:
    """Lives in the supervisor, main thread. One that answers no more is replaced; meanwhile `fork` says None."""

    def __init__(self) -> None:
        # what the template makes has this process as its parent: it can be waited for
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._warm = self._signs_tokens = False
        self._interrupted: Callable[[], bool] = lambda: False
        self.start()

    def interrupted_by(self, interrupted: Callable[[], bool]) -> None:
        """From now on no answer is waited for once this says that the server is to end."""
        self._interrupted = interrupted

    def sign_tokens(self) -> None:
        """Workers are to: what that takes is imported once for all of them, and before one has to come back."""
        self._signs_tokens = True
        self._tell_of_tokens()

    def _tell_of_tokens(self) -> None:
        if self._socket is not None and self._signs_tokens:
            with contextlib.suppress(OSError):  # it has ended, which `fork` will find
                self._socket.send(REQUEST.pack(0, 0, 0, 0, 0))

    def start(self) -> None:
        """A new one beside which nothing is waited for; without one workers are started from nothing."""
        self.close()
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                # -P: nothing is imported from the directory in which the server happens to be started
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(os.environ),
                process_group=0,
            )
            self._socket = own
            self._tell_of_tokens()
        except OSError:
            own.close()
        finally:
            theirs.close()

    def close(self) -> None:
        """It ends when its socket does."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None
        self._warm = False

    def fork(self, inheritance_fd: int, descriptors: Sequence[int], *, wait: bool) -> ForkedWorker | None:
        """A worker with these descriptors under their numbers. None: there is none this way, now. `wait`: also until
        the template is ready. InterruptedError: the server is to end."""
        if self._socket is None or not self._is_warm(_WARM_TIMEOUT_S if wait else 0.0):
            return None
        try:
            self._socket.settimeout(_FORK_TIMEOUT_S)
            self._ask([inheritance_fd, *descriptors])
            pid: int = ANSWER.unpack(self._answer(_FORK_TIMEOUT_S))[0]
        except InterruptedError:
            self.close()
            raise
        except (OSError, struct.error):
            self.close()
            return None
        return ForkedWorker(pid) if pid > 0 else None

    def _is_warm(self, timeout_s: float) -> bool:
        if not self._warm:
            try:
                self._warm = self._answer(timeout_s) == ANSWER.pack(0)
            except TimeoutError:
                return False
            except InterruptedError:
                self.close()
                raise
            except OSError:
                pass
            if not self._warm:
                self.close()
        return self._warm

    def _answer(self, timeout_s: float) -> bytes:
        """TimeoutError, InterruptedError, OSError. Empty: the template has ended."""
        assert self._socket is not None
        ends_at, readable = time.monotonic() + timeout_s, select.poll()
        readable.register(self._socket, select.POLLIN)
        while not readable.poll(min(timeout_s, _LOOK_S) * 1000):
            if self._interrupted():
                raise InterruptedError
            if time.monotonic() >= ends_at:
                raise TimeoutError
        return self._socket.recv(ANSWER.size)

    def _ask(self, descriptors: list[int]) -> None:
        assert self._socket is not None
        umask = os.umask(0)
        os.umask(umask)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for begin in range(0, len(descriptors), DESCRIPTORS_AT_ONCE):
            part = array.array("i", descriptors[begin : begin + DESCRIPTORS_AT_ONCE])
            head = REQUEST.pack(*(each & 2**64 - 1 for each in limits), umask, len(descriptors), len(part))
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)]
            self._socket.sendmsg([head, part.tobytes()], rights)
