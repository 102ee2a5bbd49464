"""A producer in the world of world.py: what became of each message is judged by what the broker has stored."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from shardd.client import Producer, statuses
from shardd.client.errors import ClientError, DeliveryError, Fate
from tests.models.history import WriterAccount, demand
from tests.models.world import PARTITIONS_MAX, World

END_S: Final = 200.0  # virtual
FAILURES: Final = (
    "answer lost",
    statuses.LOST_ON_THE_WAY,
    statuses.TOPIC_FULL,
    statuses.NOT_WRITTEN,
    statuses.PARTITION_NOT_FOUND,
    statuses.TOPIC_NOT_FOUND,
)


class WriterWorld(World):
    """`delivery`: of the producer."""

    delivery: ClassVar[str] = "at_least_once"

    @initialize(
        seed=st.integers(0, 1 << 16),
        partitions=st.integers(1, PARTITIONS_MAX),
        in_flight=st.sampled_from([1, 3, 32]),
        linger_ms=st.sampled_from([0.0, 5.0]),
        deadline_s=st.sampled_from([6.0, 40.0]),
    )
    def begin(self, seed: int, partitions: int, in_flight: int, linger_ms: float, deadline_s: float) -> None:
        self.open(seed, partitions, is_ours=True)
        self.account = WriterAccount(self.topic, repeats=self.delivery == "at_least_once")
        self.answers: dict[bytes, asyncio.Future[Any]] = {}

        async def make() -> Producer:
            options: dict[str, Any] = {"delivery": self.delivery, "in_flight": in_flight, "linger_ms": linger_ms}
            return Producer(
                self.client, "s", "t", batch_bytes=400, deadline_s=deadline_s, refresh_interval_ms=1000, **options
            )

        self.producer = self.run(make())

    # ---- what a program does ----

    @rule(
        partition=st.one_of(st.none(), st.integers(0, PARTITIONS_MAX - 1)),
        count=st.integers(1, 12),
        together=st.booleans(),
    )
    def send(self, partition: int | None, count: int, together: bool) -> None:
        self.run(self._send(self.payloads(count), partition, together=together))

    async def _send(self, payloads: list[bytes], partition: int | None, *, together: bool) -> None:
        for payload in [payloads[0]] if together else payloads:
            try:
                async with asyncio.timeout(30):
                    if together:
                        answer = await self.producer.send_batch(payloads, partition=partition)
                    else:
                        answer = await self.producer.send(payload, partition=partition)
            except (TimeoutError, ClientError):
                demand(payload not in self.topic.where, f"{payload!r} was not taken, and is stored")
                continue
            for each in payloads if together else [payload]:
                self.account.sending(each, partition)
                self.answers[each] = answer

    @precondition(lambda self: self.answers)
    @rule()
    def wait_for_the_last(self) -> None:
        self.run(asyncio.wait([list(self.answers.values())[-1]], timeout=5.0))

    # ---- what happens to it ----

    @rule(failures=st.lists(st.sampled_from(FAILURES), min_size=1, max_size=4), count=st.integers(1, 12))
    def fail(self, failures: list[int | str], count: int) -> None:
        """Of sends that follow at once."""
        self.broker.failures.extend(failures)
        self.run(self._send(self.payloads(count), 0, together=False))

    @rule(count=st.integers(1, 12), turns=st.integers(0, 6), silent=st.booleans())
    def break_under_way(self, count: int, turns: int, silent: bool) -> None:
        """With batches that wait, are on the way, or are stored without an answer."""
        self.run(self._send(self.payloads(count), 0, together=False))
        self.run(asyncio.sleep(turns * 0.0005))
        for pipe in self.loop.open_pipes():
            if silent:
                pipe.fall_silent()
            else:
                pipe.cut(carries_on=bool(turns % 2))

    @rule()
    def forget_producers(self) -> None:
        self.broker.numbers.forget()

    # ---- the end ----

    def teardown(self) -> None:
        try:
            if hasattr(self, "account"):
                self.heal()
                self.run(self._end())
                self.account.check_end()
        finally:
            self.close()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(END_S):
                await self.producer.close()
        except TimeoutError:
            demand(False, "the producer does not come to an end")
        for payload, answer in self.answers.items():
            demand(answer.done(), f"the end of {payload!r} is not told")
            error = answer.exception()
            if error is None:
                self.account.ended(payload, "stored")
            else:
                demand(isinstance(error, DeliveryError), f"{payload!r} ends with {error!r}")
                assert isinstance(error, DeliveryError)
                self.account.ended(payload, "unknown" if error.fate is Fate.UNKNOWN else "not stored")


class OnceWorld(WriterWorld):
    delivery = "idempotent"


class AtMostOnceWorld(WriterWorld):
    delivery = "at_most_once"
