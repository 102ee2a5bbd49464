"""What a consumer remembers, against answers of a server that got its directory back as files. No server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shardd.client import Message, commands
from shardd.client.history import Histories, Reset
from shardd.client.marks import Verdict
from shardd.client.messages import History, Polled
from shardd.client.positions import Place

HERE = History(7, 0)
GONE = Polled(0, 0, [], History(0, 0))  # of a partition that the member does not have
Answer = Callable[[int], Polled]


def message(offset: int, checksum: int) -> Message:
    return Message(0, offset, 0, b"", b"", 0, 0, checksum)


def polled(first: int, end: int, history: History | None = HERE, checksum: int = 0) -> Polled:
    """Messages [first, end) of a partition that ends there."""
    found = [message(offset, checksum + offset) for offset in range(first, end)]
    return Polled(0, max(end - 1, 0), found, history)


def verdict(histories: Histories, place: Place, answer: Answer) -> Verdict:
    async def ask(offset: int) -> Polled:
        return answer(offset)

    return asyncio.run(histories.verdict(place, ask))


def reads(histories: Histories, place: Place, answer: Answer, then: Answer) -> list[int]:
    """What is handed out of the poll at the place, which comes behind the comparison."""

    async def ask(offset: int) -> Polled:
        return answer(offset)

    asyncio.run(histories.prove(place, ask))
    return [each.offset for each in histories.take(place, then(place.value))]


def read(history: History | None = HERE) -> tuple[Histories, Place, list[Reset]]:
    """A consumer that has read 100 messages, and committed 51 of them; then it connected anew."""
    told: list[Reset] = []
    histories = Histories("s/t", "earliest", "skip", told.append, None)
    histories.connected()
    place = Place(0, commands.OFFSET, 0, is_kept=True)
    place.history = history
    histories.take(place, polled(0, 51, history))
    histories.committed(0)
    histories.take(place, polled(51, 100, history))
    histories.connected()
    return histories, place, told


@pytest.mark.parametrize("history", [HERE, None], ids=["told", "untold"])
def test_a_mark_at_the_end_of_the_server_is_of_another_directory(history: History | None) -> None:
    """It had 51 messages when it was asked, and has 120 by the poll at the place."""
    histories, place, told = read(history)
    end = 51

    def now(first: int) -> Polled:
        return polled(min(first, end), end, history)

    def later(first: int) -> Polled:
        return polled(first, 120, history, checksum=1)

    assert reads(histories, place, now, later) == list(range(120))
    assert [each.put_back for each in told] == [True]


def test_a_directory_that_was_empty_is_another_one() -> None:
    histories, place, _ = read()
    assert verdict(histories, place, lambda _: polled(0, 0)) is Verdict.OTHER


def test_a_mark_that_is_gone_in_front_of_the_end_leaves_the_older_ones_to_decide() -> None:
    histories, place, _ = read()
    assert verdict(histories, place, lambda offset: polled(offset if offset < 99 else 100, 101)) is Verdict.SAME
    assert histories.is_proven(0)


@pytest.mark.parametrize("answer", [GONE, GONE._replace(partition=3)], ids=["of its own", "of another"])
def test_a_partition_that_the_member_does_not_have_proves_nothing(answer: Polled) -> None:
    histories, place, told = read()
    assert verdict(histories, place, lambda _: answer) is Verdict.UNTOLD
    assert not histories.is_proven(0) and not told
    assert histories.take(place, polled(100, 120)) == []


def test_an_empty_head_without_a_history_decides_nothing() -> None:
    """So looks a partition that the member does not have, and one that is empty."""
    histories, place, told = read(None)
    assert verdict(histories, place, lambda _: polled(0, 0, None)) is Verdict.UNKNOWN
    assert not told
