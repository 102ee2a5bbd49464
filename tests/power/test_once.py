"""The judge of idempotent producers over power cuts sees what it must see: every kind of fault is planted once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardd.protocol.producers import Produced, ProducedKind, ProducerEpoch
from tests.power.ledger import LogLedger, Tally, payload_of
from tests.power.once import OnceLedger
from tests.support.wire import Message

COUNT = 3
BATCHES = 4
STORED, DUPLICATE, GAP = ProducedKind.STORED, ProducedKind.DUPLICATE, ProducedKind.GAP
UNKNOWN = Produced(ProducedKind.UNKNOWN_PRODUCER, 0, 0)


class Script:
    """One producer, four batches that were answered, and what the log has of them."""

    def __init__(self, level: str = "durable") -> None:
        self.ledger = OnceLedger(LogLedger("once/0", level))
        self.producer = self.ledger.producers[0]
        self.ledger.begin(self.producer, ProducerEpoch(7, 0, 0))
        self.log: list[bytes | None] = []
        for sequence in range(BATCHES):
            self.send(sequence)

    def send(self, sequence: int) -> None:
        payloads = [payload_of(0, sequence * COUNT + n, 40) for n in range(COUNT)]
        self.ledger.prepare(self.producer, sequence, payloads)
        self.ledger.log.prepare(payloads)
        self.ledger.answered(self.producer, sequence, Produced(STORED, COUNT, len(self.log)))
        self.ledger.log.acknowledged = len(self.ledger.log.sent)
        self.log += payloads

    def cut(self, *, in_order: bool = False) -> str:
        """Kinds of what is found then."""
        self.ledger.power_cut(in_order=in_order)
        found = [Message(n, 1000, 0, bytes(16), 0, 0, each, b"", b"") for n, each in enumerate(self.log) if each]
        return " ".join(sorted({each.kind for each in self.ledger.judge(found, Tally(), len(self.log))}))

    def answered(self, sequence: int, answer: Produced) -> bool:
        """Whether it is found wrong."""
        self.producer.batches.setdefault(sequence, [b""] * COUNT)
        self.ledger.answered(self.producer, sequence, answer)
        return bool(self.ledger.findings)


def test_an_epoch_that_was_asked_for_may_have_begun_without_an_answer() -> None:
    script = Script()
    stale = Produced(ProducedKind.STALE_EPOCH, 2, 0)
    script.producer.begins = True
    assert not script.answered(4, stale)
    script.producer.begins = False
    assert script.answered(4, stale)


def test_what_is_right_is_taken() -> None:
    script = Script()
    assert script.cut() == ""
    assert not script.answered(3, Produced(DUPLICATE, COUNT, 9))
    assert not script.answered(5, Produced(GAP, 0, 4))
    assert script.ledger.told == {"known": 1}
    assert not script.answered(4, UNKNOWN), "after a power cut it may be a stranger"


def test_whoever_began_after_the_cut_may_not_be_a_stranger() -> None:
    script = Script()
    assert script.cut() == ""
    script.ledger.begin(script.producer, ProducerEpoch(7, 1, 0))
    assert script.answered(0, UNKNOWN)


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (lambda log: log.__delitem__(slice(9, 12)), "lost"),
        (lambda log: log.extend(log[3:6]), "producer"),
        (lambda log: log.__delitem__(slice(3, 6)), "producer"),
        (lambda log: log.__setitem__(slice(3, 9), log[6:9] + log[3:6]), "producer"),
    ],
)
def test_faults_in_the_log_are_found(planted: Callable[[list[bytes | None]], None], kind: str) -> None:
    script = Script()
    planted(script.log)
    assert kind in script.cut().split()


@pytest.mark.parametrize(
    ("sequence", "answer"),
    [
        (3, Produced(STORED, COUNT, 12)),  # accepted twice
        (5, Produced(STORED, COUNT, 12)),  # a hole
        (4, Produced(DUPLICATE, COUNT, 12)),  # lost, and told to be there
        (3, Produced(DUPLICATE, COUNT, 6)),  # another place
        (4, Produced(GAP, 0, 3)),
        (3, Produced(GAP, 0, 2)),
    ],
)
def test_wrong_answers_are_found(sequence: int, answer: Produced) -> None:
    script = Script()
    assert script.cut() == ""
    assert script.answered(sequence, answer)


def test_after_a_stop_in_order_nobody_may_be_forgotten() -> None:
    script = Script()
    assert script.cut(in_order=True) == ""
    assert script.answered(4, UNKNOWN)


def test_a_batch_that_is_withheld_may_not_be_told_to_be_there() -> None:
    script = Script("written")
    script.log[4] = None
    assert script.cut() == ""
    assert script.answered(1, Produced(DUPLICATE, COUNT, 3))
