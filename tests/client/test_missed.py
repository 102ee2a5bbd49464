"""What a member is told of messages that went while it had no place in their partition: those that it had not handed
out, from where it begins on. Without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from shardd.client import Message, commands
from shardd.client.history import Histories, Loss
from shardd.client.messages import History, Polled
from shardd.client.positions import Place

HISTORY: Final = History(7, 0)
TIME: Final = 5


def answer(first: int, end: int, total: int, removed: int = 0) -> Polled:
    """Messages from `first` to `end`, of `total`; those in front of `removed` are gone."""
    messages = [Message(0, each, 0, b"", b"", 0, 0, each) for each in range(first, end)]
    return Polled(0, total - 1, messages, HISTORY, removed)


class Member:
    """Its places one after the other. `begins`: where the group has it begin."""

    def __init__(self, begins: Callable[[], Place]) -> None:
        self.told: list[Loss] = []
        self.histories = Histories("s/t", "earliest", "skip", None, self.told.append)
        self._begins = begins
        self.join()

    def join(self) -> None:
        self.place = self.histories.place(self._begins(), HISTORY)

    def join_again(self, begins: Callable[[], Place] | None = None) -> None:
        self._begins = begins or self._begins
        self.histories.leave(self.place)
        self.join()

    def read(self, polled: Polled, handed: int | None = None) -> list[int]:
        """`handed`: the last one that is handed out, None: all."""
        offsets = [each.offset for each in self.histories.take(self.place, polled)]
        if offsets:
            self.place.handed = offsets[-1] if handed is None else handed
        return offsets


def earliest() -> Place:
    return Place(0, commands.FIRST, 0)


def at(offset: int) -> Callable[[], Place]:
    return lambda: Place(0, commands.OFFSET, offset)


def kept(offset: int, stored: int = 0) -> Callable[[], Place]:
    return lambda: Place(0, commands.OFFSET, offset, stored, is_kept=True)


@pytest.mark.parametrize("begins", [earliest, at(0)], ids=["earliest", "offset"])
def test_member_that_joins_again_is_told_what_it_had_not_handed_out(begins: Callable[[], Place]) -> None:
    member = Member(begins)
    member.read(answer(0, 1000, 2000), handed=2)
    member.join_again()
    assert member.read(answer(900, 1900, 2000, removed=900))[0] == 900
    assert member.told == [Loss(0, 3, 900)]


def test_member_that_joins_again_where_nothing_is_left_is_told_at_once_and_only_once() -> None:
    member = Member(earliest)
    member.read(answer(0, 10, 20))
    member.join_again()
    assert member.read(answer(0, 0, 20, removed=20)) == []
    assert member.told == [Loss(0, 10, 20)]
    member.join_again()
    assert member.read(answer(20, 25, 25, removed=20))[0] == 20
    assert member.told == [Loss(0, 10, 20)]


def test_member_that_begins_behind_what_it_has_handed_out_is_told_nothing() -> None:
    """It went back by `seek`, and joins again at its `start`."""
    member = Member(at(1000))
    member.place.seek(commands.OFFSET, 0)
    member.read(answer(0, 10, 2000))
    member.join_again()
    assert member.read(answer(1000, 1010, 2000))[0] == 1000
    member.join_again(at(1500))
    assert member.read(answer(0, 0, 1500, removed=1200)) == [] and member.place.value == 1500
    assert member.told == []


def test_member_that_begins_at_a_time_is_told_nothing_of_what_is_in_front_of_it() -> None:
    member = Member(lambda: Place(0, commands.TIMESTAMP, TIME))
    member.read(answer(0, 10, 100))
    member.join_again()
    assert member.read(answer(50, 60, 100, removed=50))[0] == 50
    assert member.told == []


@pytest.mark.parametrize("begins", [kept(0), kept(0, 5)], ids=["latest", "stored"])
def test_member_is_not_told_that_it_lost_what_it_has_handed_out(begins: Callable[[], Place]) -> None:
    member = Member(begins)
    member.read(answer(0, 10, 100))
    member.join_again()
    assert member.read(answer(50, 60, 100, removed=50))[0] == 50
    assert member.told == [Loss(0, 10, 50)]


def test_offsets_of_another_history_do_not_count_as_handed_out() -> None:
    member = Member(earliest)
    member.read(answer(0, 10, 10))
    member.histories.leave(member.place)
    member.place = member.histories.place(kept(3, 3)(), History(8, 0))
    assert member.read(answer(5, 10, 10, removed=5)._replace(history=History(8, 0)))[0] == 5
    assert member.told == [Loss(0, 3, 5)]
