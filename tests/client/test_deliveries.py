"""Whatever happens to connections, workers and members, in whatever order: a producer states what became of each
message and keeps the order of a partition, and a group gets everything that is stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from shardd.client import Client, Consumer, Producer
from shardd.client.errors import ClientError, DeliveryError, Fate
from shardd.client.producer import Delivery
from tests.support import wire
from tests.support.generated import examples
from tests.support.server import Server

PARTITIONS: Final = 2
MEMBERS_MAX: Final = 3
KILLS_MAX: Final = 2  # of one example: workers may die only so often
END_S: Final = 120.0
_NUMBERS: Final = itertools.count()


class Deliveries(RuleBasedStateMachine):
    """One producer and the members of a group at one topic. The loop runs only while a rule does."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.stream = f"s{next(_NUMBERS)}"
        self.runner = asyncio.Runner()
        self.sent: list[tuple[bytes, int, asyncio.Future[Any]]] = []
        self.members: list[Consumer] = []
        self.delivered: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.kills = 0

    @initialize(delivery=st.sampled_from(["at_least_once", "at_most_once"]), in_flight=st.sampled_from([1, 4, 32]))
    def start(self, delivery: Delivery, in_flight: int) -> None:
        async def make() -> None:
            self.client = Client(f"shardd://iggy:iggy@{self.server.address}?deadline=60")
            await self.client.create_stream(self.stream)
            await self.client.create_topic(self.stream, "t", PARTITIONS)
            self.producer = Producer(
                self.client, self.stream, "t", delivery=delivery, in_flight=in_flight, batch_bytes=2000, deadline_s=60
            )

        self.delivery = delivery
        self.runner.run(make())

    # ---- what programs do ----

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 60))
    def send(self, partition: int, count: int) -> None:
        async def send() -> None:
            for _ in range(count):
                payload = b"%08d" % len(self.sent)
                self.sent.append((payload, partition, await self.producer.send(payload, partition=partition)))

        self.runner.run(send())

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 60))
    def send_together(self, partition: int, count: int) -> None:
        async def send() -> None:
            payloads = [b"%08d" % (len(self.sent) + number) for number in range(count)]
            future = await self.producer.send_batch(payloads, partition=partition)
            self.sent += [(payload, partition, future) for payload in payloads]

        self.runner.run(send())

    @precondition(lambda self: len(self.members) < MEMBERS_MAX)
    @rule()
    def come(self) -> None:
        async def make() -> Consumer:
            place: tuple[Any, ...] = (self.client, self.stream, "t")
            return Consumer(*place, group="g", batch_messages=20, assignment_interval_ms=20, poll_interval_ms=10)

        self.members.append(self.runner.run(make()))

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, MEMBERS_MAX - 1))
    def leave(self, number: int) -> None:
        self.runner.run(self.members.pop(number % len(self.members)).close())

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, MEMBERS_MAX - 1), times=st.integers(1, 4))
    def read(self, number: int, times: int) -> None:
        for _ in range(times):
            self.runner.run(self._read(self.members[number % len(self.members)]))

    async def _read(self, member: Consumer) -> None:
        """What is cancelled loses nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                for message in await member.get_batch():
                    self.delivered[message.partition].add(message.offset)

    @rule(milliseconds=st.integers(0, 30))
    def wait(self, milliseconds: int) -> None:
        self.runner.run(asyncio.sleep(milliseconds / 1000))

    # ---- what happens to them ----

    @rule()
    def cut_the_producer(self) -> None:
        self.runner.run(self._cut(self.producer))

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, MEMBERS_MAX - 1))
    def cut_a_member(self, number: int) -> None:
        self.runner.run(self._cut(self.members[number % len(self.members)]))

    async def _cut(self, whose: Producer | Consumer) -> None:
        link = whose._session._link
        if link is not None:
            link.abort()

    @precondition(lambda self: self.kills < KILLS_MAX)
    @rule(number=st.integers(0, 1))
    def kill_a_worker(self, number: int) -> None:
        self.kills += 1
        pids = self.server.worker_pids()
        os.kill(pids[number % len(pids)], signal.SIGKILL)

    # ---- how it ends ----

    def teardown(self) -> None:
        try:
            self.runner.run(self._end())
        finally:
            self.runner.close()

    async def _end(self) -> None:
        async with asyncio.timeout(END_S):
            await self.producer.close()
        self.server.worker_pids()  # all are back
        with wire.connect(self.server.address) as root:
            stored = [[each.payload for each in root.read_all(self.stream, "t", n)] for n in range(PARTITIONS)]
        self._judge_the_producer(stored)
        if not self.members:
            self.members.append(Consumer(self.client, self.stream, "t", group="g", assignment_interval_ms=20))
        wanted = [set(range(len(part))) for part in stored]
        async with asyncio.timeout(END_S):
            while self.delivered != wanted:
                for member in self.members:
                    await self._read(member)
        for member in self.members:
            await member.close()
        await self.client.close()

    def _judge_the_producer(self, stored: list[list[bytes]]) -> None:
        for partition, part in enumerate(stored):
            sent_here = [payload for payload, where, _ in self.sent if where == partition]
            firsts = list(dict.fromkeys(part))
            assert firsts == sorted(firsts), "another order than that of sending"
            assert set(firsts) <= set(sent_here)
            assert self.delivery == "at_least_once" or len(part) == len(firsts), "stored twice"
        there = set().union(*map(set, stored))
        for payload, _, future in self.sent:
            assert future.done(), "its end is not stated"
            error = future.exception()
            assert error is None or isinstance(error, DeliveryError | ClientError), error
            if error is None:
                assert payload in there, "acknowledged, and not there"
            elif error.fate is Fate.NOT_SENT:
                assert payload not in there, "said not to be stored, and there"


def test_nothing_is_lost_beyond_what_delivery_allows(tmp_path: Path) -> None:
    """The limit of deaths belongs to a server, so each example has its own."""
    numbers = itertools.count()
    with contextlib.ExitStack() as servers:

        def machine() -> Deliveries:
            servers.close()
            two = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
            return Deliveries(servers.enter_context(Server(tmp_path / str(next(numbers)), two)))

        slow = settings(
            max_examples=examples(5),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        run_state_machine_as_test(machine, settings=slow)  # type: ignore[arg-type]
