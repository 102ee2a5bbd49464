"""Whatever happens to connections, workers and members, in whatever order: a producer states what became of each
message and keeps the order of a partition, and a group gets everything that is stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from shardd.client import Client, Consumer, Producer, SyncClient
from shardd.client.errors import ClientError, DeliveryError, Fate
from shardd.client.producer import Delivery
from tests.support import wire
from tests.support.generated import examples
from tests.support.server import Server

pytestmark = pytest.mark.io_engine
PARTITIONS: Final = 2
MEMBERS_MAX: Final = 3
KILLS_MAX: Final = 12  # of all examples: a shard that dies too often is given up
END_S: Final = 120.0
_NUMBERS: Final = itertools.count()


class Deliveries(RuleBasedStateMachine):
    """One producer and the members of a group at one topic. The loop runs only while a rule does."""

    def __init__(self, server: Server, token: str, deaths: Iterator[int]) -> None:
        super().__init__()
        self.server, self.token, self.deaths = server, token, deaths
        self.stream = f"s{next(_NUMBERS)}"
        self.runner = asyncio.Runner()
        self.sent: list[tuple[bytes, int, asyncio.Future[Any]]] = []
        self.members: list[Consumer] = []
        self.delivered: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.killed = False

    @initialize(delivery=st.sampled_from(["at_least_once", "at_most_once"]), in_flight=st.sampled_from([1, 4, 32]))
    def start(self, delivery: Delivery, in_flight: int) -> None:
        async def make() -> None:
            self.client = Client(f"shardd://{self.token}@{self.server.address}?deadline=60")
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
        self.runner.run(self._send(partition, count))

    async def _send(self, partition: int, count: int) -> None:
        for _ in range(count):
            payload = b"%08d" % len(self.sent)
            self.sent.append((payload, partition, await self.producer.send(payload, partition=partition)))

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

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 60), turns=st.integers(0, 4))
    def cut_the_producer(self, partition: int, count: int, turns: int) -> None:
        """With batches that wait, or are on the way, or are stored without anybody knowing it."""

        async def send_and_cut() -> None:
            if self.sent:  # else there may be no connection to cut
                await asyncio.wait([self.sent[-1][2]], timeout=5)
            await self._send(partition, count)
            for _ in range(turns):
                await asyncio.sleep(0)
            await self._cut(self.producer)

        self.runner.run(send_and_cut())

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, MEMBERS_MAX - 1))
    def cut_a_member(self, number: int) -> None:
        self.runner.run(self._cut(self.members[number % len(self.members)]))

    async def _cut(self, whose: Producer | Consumer) -> None:
        link = whose._session._link
        if link is not None:
            link.abort()

    @precondition(lambda self: not self.killed)
    @rule(number=st.integers(0, 1))
    def kill_a_worker(self, number: int) -> None:
        self.killed = True
        if next(self.deaths) < KILLS_MAX:
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

    def unknown(self) -> set[bytes]:
        """The server may still have them from a lost connection, and store them behind what came later."""
        errors = ((payload, future.exception()) for payload, _, future in self.sent)
        return {payload for payload, error in errors if isinstance(error, ClientError) and error.fate is Fate.UNKNOWN}

    def _judge_the_producer(self, stored: list[list[bytes]]) -> None:
        unknown = self.unknown()
        for partition, part in enumerate(stored):
            sent_here = [payload for payload, where, _ in self.sent if where == partition]
            firsts = list(dict.fromkeys(part))
            told = [payload for payload in firsts if payload not in unknown]
            assert told == sorted(told), "another order than that of sending"
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
    deaths = itertools.count()
    generated = settings(
        max_examples=examples(20),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],  # a shorter history of what is a matter of time would say nothing
    )
    with Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}) as server:
        with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
            token = quote(client.create_token("deliveries"), safe="")  # a password takes a server its time
        run_state_machine_as_test(lambda: Deliveries(server, token, deaths), settings=generated)  # type: ignore[arg-type]
