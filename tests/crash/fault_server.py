"""`make fault`, the whole server's part: errno at the calls of the disk of running and of starting workers.

    python -m tests.crash.fault_server [--seed N]

fault_preload.c stands between the workers and libc, the engine is epoll (io_uring reads and syncs inside the kernel).
For each operation the calls of a scripted life of one topic are counted: sends that roll, flush, polls, offsets,
DELETE_SEGMENTS. Then the life is repeated with each of these calls failing. What must hold: typed statuses and no dead
worker; refused messages are not there, acknowledged ones are, in order, at once and after kill -9 of everything; a
partition whose sync has failed takes nothing until then. The same for the calls of a recovery: whatever happens while
they fail, nothing false is answered, and all is there after the next start.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.fault_control import FAIL, LIE, OPERATIONS, SHORT, FaultControl
from tests.support import wire
from tests.support.server import Server

LEVELS = ("written", "durable")
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
FOR_EVER = (errno.EIO, errno.ENOSPC)
RECOVER_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EMFILE)  # of starts, which take longer
OUT_OF_TIME = 12001  # server.request_timeout: a sync that can never begin; the connection closes
STATUSES = frozenset({0, 3007, 3011, 3021, 3023, 4007, 4027, 4100, 10002, 10006, 10008, 10009, OUT_OF_TIME})
MAYBE = frozenset({10009, OUT_OF_TIME})  # may be in the log although it was not acknowledged
STREAM = "faults"
SETTINGS = {
    "SHARDD_SYSTEM_IO_ENGINE": "epoll",
    "SHARDD_SYSTEM_SEGMENT_SIZE": "4 KiB",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "20 ms",
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "128 MiB",
    "SHARDD_SERVER_REQUEST_TIMEOUT": "4 s",  # less than the client's
}
SIDECARS = (".index", ".manifest", ".tmp")  # made anew from the log: no acknowledgement needs them
TOPICS_MAX = 60  # then everything is killed, read again and deleted
SHOWN_MAX = 20
SENDS = 24
STOP_SECONDS_MAX = 5
DELETE_SEGMENTS, DELETE_TOPIC = 503, 303


@dataclass
class Plan:
    """Which call of a topic's life fails. `at` 0: none, they are counted."""

    operation: str
    at: int = 0
    code: int = 0
    for_ever: bool = False
    how: int = FAIL

    def __str__(self) -> str:
        how = "for ever" if self.for_ever else ("once", "short", "a lie")[self.how]
        return f"{self.operation} call {self.at}, {errno.errorcode.get(self.code, 'none')} {how}"


@dataclass
class Topic:
    """The life of one topic and what is known about it."""

    name: str
    plan: Plan
    sent: list[tuple[bytes, int]] = field(default_factory=list)  # payload and status, -1: no answer
    stored: int = -1  # acknowledged consumer offset
    stored_maybe: set[int] = field(default_factory=set)
    deletes: bool = False
    statuses: Counter[int] = field(default_factory=Counter)
    injected: int = 0
    failed_path: str = ""
    findings: list[str] = field(default_factory=list)

    def find(self, text: str) -> None:
        self.findings.append(f"{self.plan}: {text}")

    def ask(self, connection: wire.Wire, code: int, payload: bytes) -> tuple[int, bytes]:
        status, answer = connection.exchange(code, payload)
        self.statuses[status] += 1
        if status not in STATUSES:
            self.find(f"command {code} is answered with {status}")
        return status, answer

    @property
    def place(self) -> bytes:
        return wire.identifier(STREAM) + wire.identifier(self.name)

    def send(self, connection: wire.Wire) -> int:
        payload = f"{self.name} {len(self.sent)} ".encode() * 20
        batch = wire.batch(STREAM, self.name, wire.to_partition(0), [wire.message(payload)])
        self.sent.append((payload, -1))
        status, _ = self.ask(connection, wire.SEND_MESSAGES, batch)
        self.sent[-1] = (payload, status)
        return status

    def store(self, connection: wire.Wire, offset: int) -> None:
        where = wire.consumer(1) + self.place + wire.optional_partition(0)
        self.stored_maybe.add(offset)
        status, _ = self.ask(connection, wire.STORE_OFFSET, where + struct.pack("<Q", offset))
        if status == 0:
            self.stored, self.stored_maybe = offset, set()

    def live(self, connection: wire.Wire) -> None:
        where = wire.consumer(1) + self.place + wire.optional_partition(0)
        for number in range(SENDS):
            self.send(connection)
            if number in (2, 8):
                self.store(connection, number - 1)
            if number in (5, 15):
                self.ask(connection, wire.FLUSH_UNSAVED_BUFFER, self.place + struct.pack("<IB", 0, number == 15))
            if number % 6 == 4:
                self.read(connection, final=False)
        self.store(connection, SENDS // 2)
        self.deletes = True
        self.ask(connection, DELETE_SEGMENTS, self.place + struct.pack("<II", 0, 10))
        self.send(connection)
        self.read(connection, final=False)
        self.ask(connection, wire.POLL_MESSAGES, where + struct.pack("<BQIB", wire.POLL_OFFSET, SENDS // 2, 2, 0))

    def read(self, connection: wire.Wire, *, final: bool) -> None:
        """All messages. While a fault may be there a poll may be refused; in the end it may not."""
        where = wire.consumer(1) + self.place + wire.optional_partition(0)
        found: list[wire.Message] = []
        while True:
            tail = (wire.POLL_OFFSET, found[-1].offset + 1) if found else (wire.POLL_FIRST, 0)
            status, answer = self.ask(connection, wire.POLL_MESSAGES, where + struct.pack("<BQIB", *tail, 1000, 0))
            if status != 0:
                if final:
                    self.find(f"not readable: {status}")
                return
            messages = wire.parse_polled(answer).messages
            if not messages:
                break
            found += messages
        self.compare(found)

    def compare(self, found: Sequence[wire.Message]) -> None:
        first = found[0].offset if found else 0
        if [message.offset for message in found] != list(range(first, first + len(found))):
            self.find("offsets are not dense")
        bounded = self.stored >= 0  # without a stored offset DELETE_SEGMENTS spares only the newest segment
        if first > 0 and not (self.deletes and (not bounded or first <= max(self.stored, -1, *self.stored_maybe) + 1)):
            self.find(f"the first offset is {first}")
        position = {payload: number for number, (payload, _) in enumerate(self.sent)}
        numbers = [position.get(message.payload, -1) for message in found]
        if numbers != sorted(set(numbers)) or -1 in numbers:
            self.find(f"order, repeats or foreign messages: {numbers}")
        seen = set(numbers)
        begin = numbers[0] if first > 0 else 0
        for number, (_, status) in enumerate(self.sent):
            if status == 0 and number >= begin and number not in seen:
                self.find(f"message {number} was acknowledged and is not there")
            if status > 0 and status not in MAYBE and number in seen:
                self.find(f"message {number} was refused with {status} and is there")

    def check_offset(self, connection: wire.Wire) -> None:
        value = connection.get_offset(STREAM, self.name, 0)
        now = -1 if value is None else value
        if now != self.stored and now not in self.stored_maybe:
            self.find(f"consumer offset {now} is stored, {self.stored} was acknowledged")

    def judge_sent(self, level: str) -> None:
        """What the statuses must have been, by what failed."""
        if OUT_OF_TIME in self.statuses and not self.plan.for_ever:
            self.find("a request is out of time")
        refused = sum(count for status, count in self.statuses.items() if status != 0)
        continued = self.plan.how == SHORT or self.plan.code == errno.EINTR
        if continued and self.plan.operation in ("write", "read", "sync") and refused:
            self.find(f"is not continued: {dict(self.statuses)}")
        if self.must_stop(level) and 10009 not in self.statuses:
            self.find(f"a failed sync of {self.failed_path} stops nothing: {dict(self.statuses)}")

    def must_stop(self, level: str) -> bool:
        """Whether a sync has failed that an acknowledgement needs."""
        needed = self.plan.code != errno.EINTR and not self.failed_path.endswith(SIDECARS)
        return self.plan.operation == "sync" and level == "durable" and self.injected > 0 and needed

    def wait_for_stop(self, connection: wire.Wire) -> None:
        """The syncs of sealed segments run in the background: one of them may have failed after the last request."""
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while 10009 not in self.statuses and time.monotonic() < deadline:
            self.send(connection)
            time.sleep(0.01)


@dataclass
class Sweep:
    root: Path
    seed: int
    pairs: int = 0
    starts: int = 0  # starts while calls of the recovery failed
    refused_starts: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.control = FaultControl(self.root)
        self.random = random.Random(self.seed)
        self.number = 0
        self.topics: list[Topic] = []

    def _start(self, level: str) -> None:
        settings = SETTINGS | self.control.environment | {"SHARDD_SYSTEM_PARTITION_ACK": level}
        self.server = Server(self.root / level, settings)
        self.server.start()
        self.connection = wire.connect(self.server.address)
        if STREAM not in self.connection.streams():
            self.connection.create_stream(STREAM)

    def run(
        self,
        level: str,
        operations: Sequence[str] = OPERATIONS,
        codes: Sequence[int] = ERRNOS,
        for_ever: Sequence[int] = FOR_EVER,
        recover_codes: Sequence[int] = RECOVER_ERRNOS,
        step: int = 1,
    ) -> None:
        """Every `step`-th call of these operations."""
        self._start(level)
        try:
            for operation in operations:
                calls = self._try(level, Plan(operation))
                self.calls[f"{level} {operation}"] = calls
                for at in range(1 + self.random.randrange(step), calls + 1, step):
                    for code in codes:
                        self._try(level, Plan(operation, at, code))
                    for code in for_ever:
                        self._try(level, Plan(operation, at, code, for_ever=True))
                    if operation in ("write", "read"):
                        self._try(level, Plan(operation, at, how=SHORT))
            self._restart_and_judge()
            if recover_codes:
                self._fail_recoveries(operations, recover_codes, step)
        finally:
            self.server.stop()

    def run_lies(self, level: str) -> None:
        """Canary: writes that were acknowledged and not done."""
        self._start(level)
        try:
            for at in (4, 9, 17):
                self._try(level, Plan("write", at, how=LIE))
            self._restart_and_judge()
        finally:
            self.server.stop()

    def _try(self, level: str, plan: Plan) -> int:
        """One topic's life with this fault; how many calls were seen."""
        topic, workers = self._new_topic(plan), self.server.running_workers()
        try:
            topic.live(self.connection)
        except (OSError, ValueError) as problem:
            self._note_lost_connection(topic, problem)
            self.connection = wire.connect(self.server.address)
        calls, topic.injected, topic.failed_path = self.control.disarm()
        self.pairs += topic.injected > 0
        if topic.must_stop(level):
            topic.wait_for_stop(self.connection)
        topic.judge_sent(level)
        topic.read(self.connection, final=True)
        if self.server.running_workers() != workers:
            topic.find("a worker has died")
        self._close(topic)
        return calls

    @staticmethod
    def _note_lost_connection(topic: Topic, problem: Exception) -> None:
        """An answer that cannot be finished ends with its connection (docs/guarantees.md, Damage), and so does a
        request that is out of time because no file can be opened for its sync any more."""
        half = topic.plan.operation == "read" and isinstance(problem, ConnectionError)
        late = topic.plan.for_ever and topic.statuses[OUT_OF_TIME] > 0 and isinstance(problem, ConnectionError)
        if not half and not late:
            topic.find(f"the connection fails: {problem}")

    def _new_topic(self, plan: Plan) -> Topic:
        topic = Topic(f"t{self.number}", plan)
        self.number += 1
        number = self.connection.create_topic(STREAM, topic.name, 1)
        # A lie about a file that is made anew from the log is no loss, and when those are written is a matter of time.
        self._arm(plan, ".log$" if plan.how == LIE else f"/topics/{number}/")
        return topic

    def _arm(self, plan: Plan, path_part: str) -> None:
        self.control.arm(plan.operation, path_part, plan.at, plan.code, for_ever=plan.for_ever, how=plan.how)

    def _close(self, topic: Topic) -> None:
        self.statuses += topic.statuses
        self.topics.append(topic)
        if len(self.topics) >= TOPICS_MAX:
            self._restart_and_judge()

    def _restart(self) -> None:
        self.connection.close()
        self.server.kill_supervisor()
        self.server.start()
        self.connection = wire.connect(self.server.address)

    def _restart_and_judge(self) -> None:
        """kill -9 of everything, then all topics: as they were, and taking messages again."""
        self._restart()
        for topic in self.topics:
            topic.read(self.connection, final=True)
            topic.check_offset(self.connection)
            if topic.send(self.connection) != 0:
                topic.find(f"after a restart a send is refused: {topic.sent[-1][1]}")
            for finding in topic.findings:
                if len(self.findings) < SHOWN_MAX:
                    print(f"FINDING {finding}", flush=True)
                self.findings.append(finding)
            self.connection.request(DELETE_TOPIC, topic.place)
        self.topics = []

    def _fail_recoveries(self, operations: Sequence[str], codes: Sequence[int], step: int) -> None:
        """Kill, start with one call of the recovery failing, kill, start without faults."""
        topic = self._new_topic(Plan("open"))
        self.control.disarm()
        topic.live(self.connection)
        for operation in operations:
            topic.plan = Plan(operation)
            calls = self._start_with(topic)
            self.calls[f"recovery {operation}"] = calls
            for at in range(1, calls + 1, step):
                for code in codes:
                    topic.plan = Plan(operation, at, code)
                    self._start_with(topic)
        self.topics = [topic]
        self._restart_and_judge()

    def _start_with(self, topic: Topic) -> int:
        plan = topic.plan
        self._arm(plan, "/topics/")
        try:
            self._restart()
            for _ in range(3):
                topic.send(self.connection)
            topic.read(self.connection, final=False)
        except RuntimeError:
            self.refused_starts += 1
        except (OSError, ValueError) as problem:
            self._note_lost_connection(topic, problem)
        calls, injected, _ = self.control.disarm()
        self.starts += 1
        self.pairs += injected > 0
        self._restart()
        topic.read(self.connection, final=True)
        topic.check_offset(self.connection)
        return calls


def place() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(description="errno at every call of the disk of running and starting workers.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step", type=int, default=1, help="only every n-th call")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the servers end, too
    with tempfile.TemporaryDirectory(prefix="shardd-fault-", dir=place(), ignore_cleanup_errors=True) as directory:
        sweep = Sweep(Path(directory), given.seed)
        for level in LEVELS:
            sweep.run(level, step=given.step)
            print(f"{level}: {sweep.pairs} pairs so far, {len(sweep.findings)} findings", flush=True)
        print("canary: findings are due now", flush=True)
        lies = Sweep(Path(directory), given.seed)
        lies.run_lies("written")
    print("calls of the disk: " + ", ".join(f"{name} {count}" for name, count in sweep.calls.items()))
    print(f"statuses: {dict(sorted(sweep.statuses.items()))}")
    print(
        f"fault: {sweep.pairs} pairs of call and errno in running servers ({sweep.starts} starts with faults, of which "
        f"{sweep.refused_starts} were refused), {len(sweep.findings)} findings; seed {given.seed}"
    )
    print(f"canary: {len(lies.findings)} findings for {lies.pairs} writes that were lies")
    return 1 if sweep.findings or not lies.findings else 0


if __name__ == "__main__":
    sys.exit(main())
