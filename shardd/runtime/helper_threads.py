"""A few threads for calls that block: password hashes, unlinks, fdatasync. They own no partition.

They talk to the loop over ZeroMQ `inproc`: a thread says that it is idle (with the number of the job it has finished),
the loop answers with the number of the next job. Functions and results stay in shared memory, under that number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar, TypeVarTuple

import zmq
import zmq.asyncio

from shardd.runtime.threads import UnwantedError

JOBS_MAX: Final = 1024  # waiting or at work; later calls wait for a place
_ENDPOINT: Final = "inproc://helper-threads"
_NUMBER: Final = struct.Struct("<Q")
_IDLE: Final = _NUMBER.pack(0)  # as a finished job: none; as an order: end
_ENDED: Final = _NUMBER.pack(2**64 - 1)  # the last word of a thread
_NICE_MAX: Final = 19
_CLOSE_TIMEOUT_S: Final = 5.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)


class _Job:
    """One call; `value` or `error` is filled in by the thread before it reports the number."""

    __slots__ = ("arguments", "error", "finished", "function", "value", "wanted")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        wanted: Callable[[], bool] | None,
        finished: asyncio.Future[None],
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.wanted = wanted
        self.finished = finished
        self.value: Any = None
        self.error: BaseException | None = None


class HelperThreads:
    """Made and used on the loop thread. Use one object for each kind of work that must not wait for another kind.

    `nice`: added to the priority of the threads, for work that shares the loop's CPU and computes.
    """

    def __init__(self, threads: int, name: str = "helper", *, nice: int = 0) -> None:
        self._nice = nice
        self._context = zmq.Context(io_threads=0)  # inproc needs none
        self._socket = zmq.asyncio.Context.shadow(self._context).socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # one order for each idle thread is all there is
        self._socket.bind(_ENDPOINT)
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[int] = deque()
        self._idle: list[bytes] = []
        self._next_number = 0
        self._room = asyncio.Semaphore(JOBS_MAX)
        self._closed = False
        self._alive = threads
        self._all_ended = asyncio.Event()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()
        self._loop_task = asyncio.create_task(self._listen(), name=f"{name} threads")

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts, wanted: Callable[[], bool] | None = None) -> T:
        """What `function(*arguments)` returns or raises, called in one of the threads.

        `wanted` is asked on the loop when a thread is free: if it says no, nothing is called, and this raises
        `UnwantedError`. A call that was cancelled runs to its end all the same. RuntimeError after `close`.
        """
        async with self._room:
            if self._closed:
                raise RuntimeError("the helper threads are closed")
            self._next_number = number = self._next_number + 1
            job = _Job(function, arguments, wanted, asyncio.get_running_loop().create_future())
            self._jobs[number] = job
            self._waiting.append(number)
            await self._give_out()
            await job.finished
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    def figures(self) -> dict[str, int]:
        """Calls that wait for a thread, and those waiting or at work."""
        return {"jobs_waiting": len(self._waiting), "jobs": len(self._jobs)}

    async def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Returns when the calls at work have ended, or after that time; the ones that wait fail with RuntimeError."""
        if self._closed:
            return
        self._closed = True
        for number in self._waiting:
            self._finish(number, RuntimeError("the helper threads are closed"))
        self._waiting.clear()
        for identity in self._idle:
            await self._socket.send_multipart([identity, _IDLE])
        self._idle.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), timeout_s)
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, return_exceptions=True)
        self._socket.close()
        if self._all_ended.is_set():  # else this would wait for the socket of a thread that still works
            self._context.term()

    def _finish(self, number: int, error: BaseException | None = None) -> None:
        job = self._jobs.pop(number, None)
        if job is None:
            return
        job.error = error or job.error
        if not job.finished.done():
            job.finished.set_result(None)

    async def _give_out(self) -> None:
        while self._waiting and self._idle:
            number = self._waiting.popleft()
            wanted = self._jobs[number].wanted
            if wanted is not None and not wanted():
                self._finish(number, UnwantedError())
                continue
            await self._socket.send_multipart([self._idle.pop(), _NUMBER.pack(number)])

    async def _listen(self) -> None:
        while True:
            identity, finished = await self._socket.recv_multipart()
            if finished == _ENDED:
                self._alive -= 1
                if self._alive == 0:
                    self._all_ended.set()
                continue
            self._finish(_NUMBER.unpack(finished)[0])
            if self._closed:
                await self._socket.send_multipart([identity, _IDLE])
                continue
            self._idle.append(identity)
            await self._give_out()

    def _work(self) -> None:
        if self._nice:  # Linux: of this thread alone
            thread = threading.get_native_id()
            os.setpriority(
                os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + self._nice, _NICE_MAX)
            )
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(_ENDPOINT)
        report = _IDLE
        try:
            while True:
                socket.send(report)
                report = socket.recv()
                if report == _IDLE:
                    socket.send(_ENDED)
                    return
                self._execute(_NUMBER.unpack(report)[0])
        except zmq.ZMQError:
            _log.exception("a helper thread ends")
        finally:
            socket.close()

    def _execute(self, number: int) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        try:
            job.value = job.function(*job.arguments)
        except BaseException as error:  # it belongs to whoever waits for the call
            job.error = error
