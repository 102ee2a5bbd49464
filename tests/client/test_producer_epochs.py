"""An idempotent producer whose partitions were purged or made again, or that had to give a batch up, goes on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.client import Client, Producer, commands, errors, statuses
from shardd.client.errors import ClientError, ConnectionLostError, DeadlineError, DeliveryError, Fate, of_status
from shardd.client.idempotence import ProducerError, Sequencer, _frees, init_producer
from shardd.client.outbox import Batch, Lane
from tests.client.topics import make, url
from tests.support import wire
from tests.support.relay import Relay
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

DEADLINE_S = 60
SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:60]


def once(client: Client, stream: str) -> Producer:
    return Producer(client, stream, "t", delivery="idempotent", deadline_s=DEADLINE_S)


def stored(server: Server, stream: str, partition: int = 0) -> list[bytes]:
    with wire.connect(server.address) as root:
        return [each.payload for each in root.read_all(stream, "t", partition)]


async def until_stored(server: Server, stream: str, wanted: list[bytes]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await asyncio.to_thread(stored, server, stream) == wanted:
                return
            await asyncio.sleep(0.01)


def test_idempotent_producer_of_a_purged_topic_stores_all_that_follows(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream, 2)
            async with once(client, stream) as producer:
                for _ in range(3):
                    for number in range(10):
                        await producer.send_and_wait(b"before%d" % number, partition=number % 2)
                    await client.purge_topic(stream, "t")
                    sent = [await producer.send(b"%02d" % number, partition=number % 2) for number in range(20)]
                    await asyncio.gather(*sent)
                    for partition in range(2):
                        assert stored(server, stream, partition) == [b"%02d" % each for each in range(partition, 20, 2)]

    asyncio.run(main())


def test_idempotent_producer_of_a_topic_made_again_stores_all_that_follows(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            async with once(client, stream) as producer:
                await producer.send_and_wait(b"0")
                await producer.send_and_wait(b"1")
                await client.delete_topic(stream, "t")
                with pytest.raises(ClientError) as raised:
                    await producer.send_and_wait(b"nowhere")
                assert raised.value.fate is Fate.NOT_SENT
                await client.create_topic(stream, "t", 1)
                await producer.send_and_wait(b"2")
                await producer.send_and_wait(b"3")
                assert stored(server, stream) == [b"2", b"3"]

    asyncio.run(main())


def test_idempotent_producer_refused_by_a_topic_in_memory_goes_on_when_it_is_not(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            async with once(client, stream) as producer:
                await producer.send_and_wait(b"0")
                await client.set_topic_settings(stream, "t", {"ack": "memory"})
                with pytest.raises(DeliveryError) as raised:
                    await producer.send_and_wait(b"refused")
                assert isinstance(raised.value.__cause__, ProducerError)
                await client.set_topic_settings(stream, "t", {"ack": "written"})
                await producer.send_and_wait(b"1")
                assert stored(server, stream) == [b"0", b"1"]

    asyncio.run(main())


def test_doubtful_batch_over_a_purge_is_told_and_the_rest_goes_on(server: Server, stream: str) -> None:
    """The batch is stored, its answer is lost, and the purge takes what could tell."""

    async def main() -> None:
        async with Client(url(server)) as client, Relay(server.address) as relay:
            await make(client, stream, 2)
            async with (
                Client(f"shardd://iggy:iggy@127.0.0.1:{relay.port}?request_timeout=600") as far,
                once(far, stream) as producer,
            ):
                await producer.send_and_wait(b"0", partition=0)
                number = relay.connections - 1
                relay.mute.add(number)
                doubtful = await producer.send(b"1", partition=0)
                await until_stored(server, stream, [b"0", b"1"])
                other = await producer.send(b"other", partition=1)
                await client.purge_topic(stream, "t")
                relay.cut(number)
                assert producer._link is not None
                await producer._link.closed.wait()
                behind = await producer.send(b"2", partition=0)
                with pytest.raises(DeliveryError) as raised:
                    await doubtful
                assert raised.value.fate is Fate.UNKNOWN
                await asyncio.wait([other])
                await behind
                await producer.send_and_wait(b"3", partition=0)
                assert stored(server, stream) == [b"2", b"3"]

    asyncio.run(main())


def test_batch_that_ran_out_of_time_leaves_an_idempotent_producer_usable(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, Relay(server.address) as relay:
            await make(client, stream)
            async with Client(f"shardd://iggy:iggy@127.0.0.1:{relay.port}?request_timeout=600") as far:
                producer = Producer(far, stream, "t", delivery="idempotent", deadline_s=2.0)
                await producer.send_and_wait(b"0")
                relay.mute.add(relay.connections - 1)
                with pytest.raises(DeliveryError) as raised:
                    await producer.send_and_wait(b"1")
                assert raised.value.fate is Fate.UNKNOWN
                async with asyncio.timeout(DEADLINE_S):
                    while True:  # a busy machine may take more than the two seconds
                        try:
                            await producer.send_and_wait(b"2")
                            break
                        except DeliveryError as error:
                            assert not isinstance(error.__cause__, ProducerError)
                await producer.close()
                found = stored(server, stream)
                assert found[:2] == [b"0", b"1"] and b"2" in found[2:]

    asyncio.run(main())


def test_epoch_that_begins_late_does_not_end_an_idempotent_producer(server: Server, stream: str) -> None:
    """The request for an epoch reaches the server behind the next one, as from a worker that stood still."""

    async def main() -> None:
        async with Client(url(server)) as client, Relay(server.address) as relay:
            await make(client, stream)
            async with (
                Client(f"shardd://iggy:iggy@127.0.0.1:{relay.port}?request_timeout=600") as far,
                once(far, stream) as producer,
            ):
                await producer.send_and_wait(b"0")
                await client.purge_topic(stream, "t")
                relay.holds = init_producer().code.to_bytes(4, "little")
                first = await producer.send(b"1")
                relay.cut(await relay.holding)
                await first
                relay.let_go.set()
                sequencer = producer._once
                assert sequencer is not None
                renewed = init_producer(sequencer._producer, sequencer._epoch, renew=True)
                with pytest.raises(ClientError) as raised:
                    async with asyncio.timeout(DEADLINE_S):
                        while True:
                            with contextlib.suppress(DeadlineError):
                                await client.session.call(renewed, 0.1)  # a status that a client may try again
                            await asyncio.sleep(0.01)
                assert raised.value.status == 30
                await producer.send_and_wait(b"2")
                await producer.send_and_wait(b"3")
                assert stored(server, stream) == [b"1", b"2", b"3"]

    asyncio.run(main())


# ---- every mixture of ends, against a model of one partition ----

EVENTS = st.lists(
    st.sampled_from(["stored", "lost before", "lost behind", "refused", "purged", "unavailable", "time is over"]),
    max_size=60,
)


class Partition:
    """What a partition does with numbered batches. `late`: frames of lost connections, which it may still take.
    `begun`: the epoch of which the metadata say that it has begun."""

    def __init__(self) -> None:
        self.history: list[list[bytes]] = [[]]
        self.epoch = self.next = 0
        self.begun = -1
        self.is_known = False
        self.late: list[tuple[int, int, bytes]] = []

    def purge(self) -> None:
        self.history.append([])
        self.is_known = False

    def take(self, epoch: int, sequence: int, payload: bytes) -> bytes:
        """The answer, by `producers_judge` of the native log."""
        kind, first = 1, 0
        if epoch < self.begun:
            return struct.pack("<B3xIQ", 4, self.begun, 0)
        if not self.is_known and sequence:
            return struct.pack("<B3xIQ", 5, 0, 0)
        if not self.is_known or epoch > self.epoch:
            self.is_known, self.epoch, self.next = True, epoch, 0
        if sequence < self.next:
            kind = 2
        elif sequence > self.next:
            kind, first = 3, self.next
        else:
            self.next += 1
            self.history[-1].append(payload)
        return struct.pack("<B3xIQ", kind, 1, first)


class Epochs:
    """The session of a sequencer: an epoch that begins ends the ones before in the partition. The answer of a begin may
    be lost, and the server may carry it out much later."""

    def __init__(self, partition: Partition, chance: random.Random) -> None:
        self.partition, self.chance = partition, chance
        self.late = 0  # begins without an answer that the server has not carried out yet

    def begin(self) -> None:
        self.partition.begun += 1
        self.partition.late = [each for each in self.partition.late if each[0] >= self.partition.begun]

    def some_late(self) -> None:
        while self.late and self.chance.random() < 0.3:
            self.late -= 1
            self.begin()

    async def call(self, command: commands.Command[Any], _deadline_s: float | None = None) -> Any:
        if command.code == commands.extensions().code:
            return SimpleNamespace(commands=[SimpleNamespace(code=commands.SEND_ONCE)])
        if self.partition.begun >= 0 and self.chance.random() < 0.4:
            self.late += 1
            self.some_late()
            raise ConnectionLostError("lost", Fate.UNKNOWN)
        self.begin()
        return 1, self.partition.begun, 1 << 50


@given(EVENTS, st.integers(1, 6), st.integers(1, 12), st.randoms(use_true_random=False))
def test_numbered_batches_of_any_history_are_stored_once_and_their_fates_are_true(
    events: list[str], in_flight: int, count: int, chance: random.Random
) -> None:
    asyncio.run(_numbered(list(events), in_flight, count, chance))


async def _numbered(script: list[str], in_flight: int, count: int, chance: random.Random) -> None:
    partition = Partition()
    epochs = Epochs(partition, chance)
    sequencer = Sequencer(epochs)  # type: ignore[arg-type]
    sequencer_lane = sequencer.lane(0)
    ends: dict[bytes, Fate | None] = {}
    for number in range(count):
        batch = Batch(1.0)
        batch.sealed = True
        batch.records.append(b"%02d" % number)
        sequencer_lane.waiting.append(batch)
    rounds = 0
    while sequencer_lane.waiting:
        rounds += 1
        assert rounds < 1000, "it does not come to an end"
        if sequencer.is_due:
            sequencer._in_vain = 0  # no pause
            try:
                await sequencer.begin(60.0)
            except ConnectionLostError:
                continue
        epochs.some_late()
        _one_round(script, in_flight, chance, partition, sequencer, sequencer_lane, ends)
    sequencer.close()
    assert sequencer.final is None, "only a restore ends a producer"
    assert len(ends) == count
    present = partition.history[-1]
    for payload, fate in ends.items():
        times: list[int] = [each.count(payload) for each in partition.history]
        assert max(times) <= 1, "stored twice in one history"
        assert fate is not Fate.NOT_SENT or not present.count(payload), "said not to be stored, and there"
        assert fate is not None or any(times), "said to be stored, and nowhere"
    for each in partition.history:
        assert each == sorted(each), "another order than that of sending"


def _one_round(
    script: list[str],
    in_flight: int,
    chance: random.Random,
    partition: Partition,
    sequencer: Sequencer,
    lane: Lane,
    ends: dict[bytes, Fate | None],
) -> None:
    sent: list[Batch] = []
    lost, now = "", 0.0
    while lane.ready() and len(sent) < in_flight:
        batch = lane.take()
        sequencer.head(lane, batch)
        sent.append(batch)
    for batch in sent:
        assert batch.sequence is not None
        frame = sequencer._epoch, batch.sequence, batch.records[0]
        event = lost or (script.pop(0) if script else "stored")
        if event == "purged":
            partition.purge()
        if event.startswith("lost") or event == "time is over":
            if event == "lost behind":
                partition.take(*frame)
            elif not lost or chance.random() < 0.5:
                partition.late.append(frame)
            now = 2.0 if event == "time is over" else now
            lost = "lost before"
            lane.answered(batch, ConnectionLostError("lost", Fate.UNKNOWN))
        elif event == "refused":
            lane.answered(batch, of_status(3009, commands.SEND_ONCE))
        elif event == "unavailable":
            lane.answered(batch, of_status(8, commands.SEND_ONCE))
        else:
            error = sequencer.judge(partition.take(*frame))
            lane.answered(batch, error)
            if error is None:
                ends[batch.records[0]] = None
    while partition.late and chance.random() < 0.5:
        partition.take(*partition.late.pop(0))
    for batch, _ in lane.settle(now, True):
        ends[batch.records[0]] = batch.fate


def test_number_of_a_batch_that_a_failing_device_refused_is_not_given_again() -> None:
    """The device may keep what it could not be told to take back, and the next start counts it (10006)."""
    assert _frees(errors.of_status(statuses.TOPIC_FULL))
    assert not any(_frees(errors.of_status(status)) for status in (3007, statuses.NOT_WRITTEN, 10009))
