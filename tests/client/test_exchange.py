"""The exchange of one connection: answers find their requests however the bytes are cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shardd.client import wire
from shardd.client.errors import Fate, UnavailableError
from shardd.client.exchange import Exchange

ANSWER = st.tuples(st.sampled_from((0, 3, 8, 30)), st.binary(max_size=40))


def encoded(answers: list[tuple[int, bytes]]) -> bytes:
    return b"".join(wire.FRAME_HEAD.pack(status, len(payload)) + payload for status, payload in answers)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(each, len(data)) for each in cuts), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(places) if begin < end]


@given(answers=st.lists(ANSWER, max_size=8), cuts=st.lists(st.integers(0, 400), max_size=30))
def test_answers_cut_anywhere_belong_to_their_requests(answers: list[tuple[int, bytes]], cuts: list[int]) -> None:
    exchange: Exchange[int] = Exchange()
    for number in range(len(answers)):
        assert exchange.ask(number, 100 + number, b"abc") == wire.frame(100 + number, b"abc")
    heard = [answer for piece in pieces(encoded(answers), cuts) for answer in exchange.heard(piece)]
    assert heard == [(number, status, payload) for number, (status, payload) in enumerate(answers)]
    assert not exchange.asked and not exchange.missing and exchange.farewell is None
    stops = any(status == 8 for status, _ in answers)
    assert exchange.lost("reset").fate is (Fate.NOT_SENT if stops else Fate.UNKNOWN)


@given(
    answers=st.lists(ANSWER, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    end=st.integers(0, 200),
)
def test_an_answer_that_is_not_whole_is_not_given(answers: list[tuple[int, bytes]], cuts: list[int], end: int) -> None:
    exchange: Exchange[int] = Exchange()
    for number in range(len(answers)):
        exchange.ask(number, 1, b"")
    data = encoded(answers)[:end]
    whole = [at for at in range(len(answers) + 1) if len(encoded(answers[:at])) <= len(data)][-1]
    heard = [answer for piece in pieces(data, cuts) for answer in exchange.heard(piece)]
    assert [number for number, _, _ in heard] == list(range(whole))
    assert len(exchange.asked) == len(answers) - whole
    rest = len(data) - len(encoded(answers[:whole]))
    is_within = whole < len(answers) and rest >= wire.FRAME_HEAD.size
    assert exchange.missing == (len(encoded(answers[: whole + 1])) - len(data) if is_within else 0)


@given(cuts=st.lists(st.integers(0, 20), max_size=4))
def test_a_status_without_a_request_is_the_reason_of_the_end(cuts: list[int]) -> None:
    exchange: Exchange[int] = Exchange()
    assert [answer for piece in pieces(encoded([(30, b"")]), cuts) for answer in exchange.heard(piece)] == []
    assert isinstance(exchange.farewell, UnavailableError) and exchange.farewell.status == 30
    assert "status 30 (stale_client)" in str(exchange.lost("reset"))
