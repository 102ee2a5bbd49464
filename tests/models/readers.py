"""A consumer, or the members of a group, in the world of world.py: what they hand over, tell and commit is judged."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from shardd.client import Consumer, Message
from shardd.client.errors import ClientError
from tests.models.history import History, ReaderAccount
from tests.models.world import PARTITIONS_MAX, REFILL, World

END_S: Final = 60.0  # virtual
MEMBERS_MAX: Final = 3


class ReaderWorld(World):
    """`is_group`: members come and go, else one consumer by its name, which is begun anew now and then."""

    is_group: ClassVar[bool] = False

    @initialize(
        seed=st.integers(0, 1 << 16),
        partitions=st.integers(1, PARTITIONS_MAX),
        commit=st.sampled_from(["after", "each", "manual"]),
        on_reset=st.sampled_from(["earliest", "error"]),
        on_loss=st.sampled_from(["skip", "error"]),
        latest=st.booleans(),
        before=REFILL,
    )
    def begin(
        self, seed: int, partitions: int, commit: str, on_reset: str, on_loss: str, latest: bool, before: int
    ) -> None:
        self.open(seed, partitions, is_ours=True)
        self.options: dict[str, Any] = {"commit": commit, "on_reset": on_reset, "on_loss": on_loss}
        self.options["group" if self.is_group else "name"] = "g"
        self.options["start"] = "latest" if latest else "earliest"
        self.latest = latest
        for partition in range(partitions):
            self.topic.append(partition, self.payloads(before))
        begins = {each.partition: each.end for each in self.topic.partitions} if latest else {}
        self.account = ReaderAccount(self.topic, repeats=self.is_group, begins=begins)
        self.broker.stored = self._stored
        self.readers: dict[int, Consumer] = {}
        self.made = 0
        self.last: dict[int, list[Message]] = {}
        self.come()
        if latest:
            self.run(self._read(0, 1.0, together=False))  # its place is taken

    def _stored(self, is_group: bool, name: str, history: History, offset: int) -> None:
        self.account.committed(history.partition, history.number, offset)

    # ---- readers ----

    def come(self) -> None:
        key, self.made = self.made, self.made + 1

        async def make() -> Consumer:
            return Consumer(
                self.client,
                "s",
                "t",
                batch_messages=4,
                poll_interval_ms=50,
                assignment_interval_ms=500,
                when_reset=lambda reset: self.account.reset(reset.partition, key),
                when_lost=lambda loss: self.account.lost(*loss, reader=key),
                **self.options,
            )

        self.readers[key] = self.run(make())

    def _key(self, number: int) -> int:
        return sorted(self.readers)[number % len(self.readers)]

    @precondition(lambda self: len(self.readers) < (MEMBERS_MAX if self.is_group and not self.latest else 1))
    @rule()
    def come_one(self) -> None:
        self.come()

    @precondition(lambda self: self.readers and not self.latest)
    @rule(number=st.integers(0, MEMBERS_MAX - 1), crashes=st.booleans())
    def leave(self, number: int, crashes: bool) -> None:
        consumer = self.readers.pop(self._key(number))

        async def end() -> None:
            with contextlib.suppress(ClientError):
                if crashes:
                    await consumer._session.close()
                else:
                    await consumer.close()

        self.run(end())

    @precondition(lambda self: self.readers)
    @rule(
        number=st.integers(0, MEMBERS_MAX - 1),
        seconds=st.sampled_from([0.004, 0.05, 1.0, 15.0]),
        times=st.sampled_from([1, 3, 20]),
        together=st.booleans(),
    )
    def read(self, number: int, seconds: float, times: int, together: bool) -> None:
        for _ in range(times):
            if not self.run(self._read(self._key(number), seconds, together=together)):
                break

    async def _read(self, key: int, seconds: float, *, together: bool) -> bool:
        """Whether something came. What is cancelled loses nothing."""
        consumer = self.readers[key]
        try:
            async with asyncio.timeout(seconds):
                batch = await consumer.get_batch() if together else [await consumer.get()]
        except (TimeoutError, ClientError):
            return False
        self.last[key] = batch
        for each in batch:
            self.account.delivered(each.partition, each.offset, each.payload, key)
        return True

    @precondition(lambda self: self.readers)
    @rule(number=st.integers(0, MEMBERS_MAX - 1), which=st.integers(0, 5), one=st.booleans())
    def commit(self, number: int, which: int, one: bool) -> None:
        key = self._key(number)
        batch, consumer = self.last.get(key, []), self.readers[key]

        async def store() -> None:
            with contextlib.suppress(ClientError):
                if one and batch:
                    await consumer.commit_to(batch[which % len(batch)])
                else:
                    consumer.done()
                    await consumer.commit()

        self.run(store())

    # ---- what happens ----

    @rule(partition=st.integers(0, PARTITIONS_MAX - 1), count=st.integers(1, 9))
    def send(self, partition: int, count: int) -> None:
        self.topic.append(partition % len(self.topic.partitions), self.payloads(count))
        self.broker.changed()

    @rule(partition=st.integers(0, PARTITIONS_MAX - 1), keeps=st.integers(0, 3))
    def retain(self, partition: int, keeps: int) -> None:
        history = self.topic.partitions[partition % len(self.topic.partitions)]
        self.topic.retain(history.partition, max(history.first, history.end - keeps))

    @rule(partition=st.integers(0, PARTITIONS_MAX - 1), back=st.integers(1, 5), count=st.integers(1, 2))
    def isolate(self, partition: int, back: int, count: int) -> None:
        """Damage; the newest message is not what it hits."""
        history = self.topic.partitions[partition % len(self.topic.partitions)]
        begin = max(history.first, history.end - 1 - back)
        self.topic.isolate(history.partition, begin, min(begin + count, history.end - 1))

    # ---- the end ----

    def teardown(self) -> None:
        try:
            if hasattr(self, "account"):
                self.heal()
                if not self.readers:
                    self.come()
                self.run(self._end())
                self.account.check_end()
        finally:
            self.close()

    async def _end(self) -> None:
        until = self.loop.time() + END_S
        while self.account.missing() and self.loop.time() < until:
            for key in self.readers:
                while self.loop.time() < until and await self._read(key, 3.0, together=True):
                    pass
            for group in self.broker.groups.values():
                group.expire()
        for consumer in self.readers.values():
            await consumer.close()


class GroupWorld(ReaderWorld):
    """Members of a group."""

    is_group = True
