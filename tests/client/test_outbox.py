"""The order of batches of one partition under every mixture of ends, against a model of the log."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.client.errors import ConnectionLostError, DeliveryError, Fate, of_status
from shardd.client.outbox import Batch, Lane, Position, SentOutOfOrderError

POSITION = Position("s", "t", 0)
ENDS = st.lists(
    st.sampled_from(["stored", "not stored", "refused", "lost before", "lost behind"]), min_size=1, max_size=60
)


class Model:
    """One partition and its log. An end for each batch on the way, in their order, as a server gives them: behind a
    lost connection everything is lost, and what it had carried out is the first of it."""

    def __init__(self, again_when_unknown: bool) -> None:
        self.lane = Lane(0)
        self.log: list[int] = []
        self.ended: dict[int, str] = {}
        self.again = again_when_unknown
        self.batches: dict[int, Batch] = {}

    def add(self, number: int) -> None:
        batch = Batch(1e9)
        batch.sealed = True
        batch.records.append(str(number).encode())
        self.batches[number] = batch
        self.lane.waiting.append(batch)

    def run(self, ends: list[str], in_flight: int) -> None:
        script = list(ends)
        while self.lane.waiting:
            sent: list[Batch] = []
            while self.lane.ready() and len(sent) < in_flight:
                sent.append(self.lane.take())
            lost: str | None = None
            for batch in sent:
                end = lost or (script.pop(0) if script else "stored")
                number = int(batch.records[0])
                if end == "lost behind":
                    self.log.append(number)
                if end == "stored":
                    self.log.append(number)
                    self.lane.answered(batch, None)
                    self.ended[number] = "stored"
                elif end in ("lost before", "lost behind"):
                    lost = "lost before"  # what is behind it was not carried out
                    self.lane.answered(batch, ConnectionLostError("lost", Fate.UNKNOWN))
                else:
                    self.lane.answered(batch, of_status(11001 if end == "not stored" else 3007, 101))
            for batch, error in self.lane.settle(0.0, self.again):
                self.ended[int(batch.records[0])] = DeliveryError(error, batch.fate).fate.value


@given(ENDS, st.integers(1, 6), st.integers(1, 12), st.booleans())
def test_order_is_kept_and_every_fate_is_true(ends: list[str], in_flight: int, count: int, again: bool) -> None:
    model = Model(again)
    for number in range(count):
        model.add(number)
    model.run(ends, in_flight)
    assert set(model.ended) == set(range(count))  # each has an end
    for number, end in model.ended.items():
        times = model.log.count(number)
        assert times >= (end == "stored") and (times == 0 or end != "not sent"), (number, end, model.log)
        assert again or times <= 1
    firsts = list(dict.fromkeys(model.log))
    assert firsts == sorted(firsts)


def test_what_failed_in_front_of_a_stored_one_is_not_sent_again() -> None:
    lane = Lane(0)
    batches = [Batch(1e9) for _ in range(3)]
    for batch in batches:
        batch.sealed = True
        lane.waiting.append(batch)
    taken = [lane.take() for _ in range(3)]
    lane.answered(taken[0], of_status(11001, 101))
    assert not lane.ready()
    lane.answered(taken[1], None)
    lane.answered(taken[2], of_status(11001, 101))
    [(batch, error)] = lane.settle(0.0, True)
    assert batch is batches[0] and isinstance(error, SentOutOfOrderError)
    assert list(lane.waiting) == [batches[2]]


def test_the_end_of_a_batch_is_that_of_all_its_messages() -> None:
    async def main() -> None:
        batch = Batch(0.0)
        loop = asyncio.get_running_loop()
        batch.answers = [loop.create_future() for _ in range(3)]
        batch.answers[0].cancel()
        batch.fate = Fate.UNKNOWN
        batch.failed(ConnectionLostError("lost"))
        with pytest.raises(DeliveryError) as raised:
            await batch.answers[1]
        assert (raised.value.fate, raised.value.retryable) == (Fate.UNKNOWN, True)
        assert batch.answers[2].exception() is not raised.value  # each has its own: tracebacks grow

    asyncio.run(main())


def test_send_whose_sync_failed_has_an_unknown_fate() -> None:
    """The records were written before the sync: the next start may find them."""
    assert of_status(10009, 101).fate is Fate.UNKNOWN
