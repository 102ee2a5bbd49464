"""The short form of `make crash-producers`, and proof that what judges it finds what is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.protocol.producers import Produced, ProducedKind
from tests.crash.clean_kills import Kind, run
from tests.crash.producer_kills import APPEND, RECOVERY, ProducerLane
from tests.support import wire
from tests.support.once_observer import Batch, OnceObserver, payloads

SHORT = (
    Kind("written", APPEND[:4]),
    Kind("durable", RECOVERY[:1] + APPEND[3:4], kept=300),
)
COUNT = 3
STORED, DUPLICATE = ProducedKind.STORED, ProducedKind.DUPLICATE


def test_a_kill_at_a_step_of_a_producer_leaves_each_batch_once_and_forgets_nobody(tmp_path: Path) -> None:
    figures = run(tmp_path, 8, seed=6, lanes=2, kinds=SHORT, lane_of=ProducerLane)
    print(figures)
    assert not figures.findings and not figures.cut, (figures.findings, figures.cut)
    assert figures.killed.total() == 8 and RECOVERY[0].about in figures.killed
    assert figures.counts["duplicates"] > 4 and figures.counts["epochs"] >= 4


def message(offset: int, payload: bytes) -> wire.Message:
    return wire.Message(offset, 0, 0, b"", 0, 0, payload, b"", payload)


class Scripted:
    """Three batches of one producer, the third without an answer; the log has them."""

    def __init__(self) -> None:
        self.observer = OnceObserver()
        self.batches = [Batch(0, 1, sequence) for sequence in range(3)]
        for batch in self.batches:
            self.observer.sending(batch)
        for number, batch in enumerate(self.batches[:2]):
            self.observer.answered(batch, COUNT, Produced(STORED, COUNT, COUNT * number))
        self.log = [each for batch in self.batches for each in payloads(batch, COUNT)]

    def judged(self, start: int = 0) -> str:
        """The first word of the first finding."""
        self.observer.judge([message(start + at, each) for at, each in enumerate(self.log[start:])])
        return self.findings()

    def findings(self) -> str:
        return self.observer.findings[0].split(":")[0] if self.observer.findings else ""


def test_the_beginning_of_a_plain_batch_may_be_left_unless_it_was_acknowledged() -> None:
    script, plain = Scripted(), Batch(99, -1, 0)
    script.log[3:3] = payloads(plain, COUNT)[:2]
    script.observer = OnceObserver()
    for batch in (*script.batches, plain):
        script.observer.sending(batch)
    assert script.judged() == ""
    script.observer.stored(plain, COUNT)
    assert script.judged() == "altered"


def test_the_observer_takes_what_is_right() -> None:
    script = Scripted()
    assert script.judged() == ""
    script.observer.answered(script.batches[2], COUNT, Produced(DUPLICATE, COUNT, 6))
    script.observer.kept = 4
    assert script.judged(4) == "", "the beginning may leave"
    without = Scripted()
    del without.log[6:]
    assert without.judged() == "", "what got no answer may be missing"
    without.observer.answered(without.batches[2], COUNT, Produced(STORED, COUNT, 6))
    assert without.judged() == "lost"


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (lambda log: log.extend(log[6:9]), "twice"),
        (lambda log: log.__delitem__(slice(3, 6)), "order"),
        (lambda log: log.__delitem__(slice(8, 9)), "altered"),
        (lambda log: log.__setitem__(7, log[7][:-1] + b"!"), "altered"),
        (lambda log: log.__setitem__(slice(3, 9), log[6:9] + log[3:6]), "order"),
        (lambda log: log.__delitem__(slice(0, 3)), "moved"),
        (lambda log: log.extend(payloads(Batch(0, 1, 3), COUNT)), "foreign"),
        (lambda log: log.clear(), "lost"),
    ],
)
def test_the_observer_finds_what_is_planted_in_the_log(planted: Callable[[list[bytes]], None], finding: str) -> None:
    script = Scripted()
    planted(script.log)
    assert script.judged() == finding


@pytest.mark.parametrize(
    ("batch", "answer", "finding"),
    [
        (2, Produced(STORED, COUNT, 9), "twice"),
        (2, Produced(DUPLICATE, COUNT, 3), "answer"),
        (1, Produced(DUPLICATE, COUNT, 6), "answer"),
        (1, Produced(DUPLICATE, COUNT - 1, 3), "answer"),
        (1, Produced(STORED, COUNT, 3), "twice"),
        (2, Produced(ProducedKind.UNKNOWN_PRODUCER, 0, 0), "answer"),
        (2, Produced(ProducedKind.GAP, 0, 1), "answer"),
    ],
)
def test_the_observer_finds_wrong_answers(batch: int, answer: Produced, finding: str) -> None:
    script = Scripted()
    assert script.judged() == ""
    script.observer.answered(script.batches[batch], COUNT, answer)
    assert script.findings() == finding
