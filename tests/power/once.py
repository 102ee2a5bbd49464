"""Idempotent producers in the load of tests/power: two of them and somebody without one fill one partition; over each
power cut they go on, and what had no answer is sent again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from tests.power.hands import BATCH_MAX, STREAM, Hand, send
from tests.power.ledger import Finding, LogLedger, Tally, payload_of
from tests.support import wire
from tests.support.once_model import OnceModel, Part, Run
from tests.support.wire import Message

TOPIC: Final = "once"
PRODUCERS: Final = 2
PLAIN: Final = 103
AGAIN: Final = 0.15
NEW_EPOCH: Final = 0.03


class _Producer:
    """As an application holds it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.who: ProducerEpoch | None = None
        self.epochs = 0
        self.begun = 0  # number of the cut before it
        self.sequence = 0
        self.begins = False  # a new epoch was asked for, and there was no answer: it may have begun
        self.batches: dict[int, list[bytes]] = {}

    @property
    def run(self) -> Run:
        return Run(self.number, self.epochs)


class OnceLedger:
    """`told`: how often a producer was known, or unknown, when it came back after a power cut."""

    def __init__(self, log: LogLedger) -> None:
        self.log = log
        self.findings: list[Finding] = []
        self.once = OnceModel(lambda text: self.findings.append(Finding("producer", log.place, text)))
        self.producers = [_Producer(number) for number in range(PRODUCERS)]
        self.told: Counter[str] = Counter()
        self.cuts = 0
        self.back: set[int] = set()  # producers that have not been answered since the last cut
        self._numbers: dict[bytes, int] = {}

    def begin(self, producer: _Producer, who: ProducerEpoch) -> None:
        producer.who, producer.epochs, producer.begun = who, producer.epochs + 1, self.cuts
        producer.sequence, producer.batches, producer.begins = 0, {}, False
        self.back.discard(producer.number)

    def prepare(self, producer: _Producer, sequence: int, payloads: list[bytes]) -> None:
        """A new batch is about to be sent."""
        producer.batches[sequence] = payloads
        for position, payload in enumerate(payloads):
            number = len(self._numbers)
            self._numbers[payload] = number
            self.once.sending(number, Part(producer.run, sequence, position, len(payloads)))

    def answered(self, producer: _Producer, sequence: int, answer: Produced) -> None:
        count = len(producer.batches[sequence])
        if not (answer.kind is ProducedKind.STALE_EPOCH and producer.begins):
            self.once.answered(producer.run, producer.begun, sequence, count, answer)
        if producer.number in self.back:
            self.back.discard(producer.number)
            unknown = answer.kind is ProducedKind.UNKNOWN_PRODUCER
            self.told["unknown" if unknown else "known"] += 1

    def power_cut(self, *, in_order: bool) -> None:
        """`in_order`: after a stop that has synced everything. Then nobody may be forgotten."""
        self.cuts += 1
        self.back = {producer.number for producer in self.producers if producer.epochs}
        if not in_order:
            self.once.power_cut(self.cuts - 1)

    def judge(self, found: Sequence[Message], tally: Tally, end: int = 0) -> list[Finding]:
        """As LogLedger.judge."""
        findings = [*self.log.judge(found, tally, end), *self.findings]
        first = found[0].offset if found else 0
        numbers: list[int | None] = []
        for message in found:
            numbers += [None] * (message.offset - first - len(numbers))
            numbers.append(self._numbers.get(message.payload))
        self.findings.clear()
        self.once.recovered(numbers, first, power_was_cut=True)
        findings += self.findings
        self.findings.clear()
        return findings


class OnceProducer(Hand):
    """Fills the topic `once`."""

    def __init__(self, address: str, seed: str, ledger: OnceLedger) -> None:
        super().__init__("once", address, seed)
        self.ledger = ledger

    def step(self, connection: wire.Wire) -> None:
        producer, chance = self.rng.choice(self.ledger.producers), self.rng.random()
        if producer.who is None or chance < NEW_EPOCH:
            self._begin(connection, producer)
        told = [sequence for sequence in producer.batches if sequence < producer.sequence]
        if told and chance > 1 - AGAIN:
            self._send(connection, producer, self.rng.choice(told[-8:]))
        if self._send(connection, producer, producer.sequence):
            producer.sequence += 1
        if self.rng.random() < AGAIN:
            send(connection, TOPIC, 0, self.ledger.log, self.rng, PLAIN)
        time.sleep(self.rng.random() * 0.004)

    def _begin(self, connection: wire.Wire, producer: _Producer) -> None:
        number = producer.who.producer if producer.who is not None else 0
        before, sequence = producer.who, producer.sequence
        producer.begins = True
        answer = connection.request(ExtensionCode.INIT_PRODUCER, InitProducer(number, 0, False).encode())
        self.ledger.begin(producer, ProducerEpoch.read(Reader(answer)))
        if before is not None:
            stale = self._ask(connection, before, sequence, [b"never"])
            if stale.kind is not ProducedKind.STALE_EPOCH:
                self.ledger.findings.append(Finding("producer", TOPIC, f"a batch of the epoch before gets {stale}"))

    def _send(self, connection: wire.Wire, producer: _Producer, sequence: int) -> bool:
        """Whether it is there now. What the log has is not expected a second time."""
        ledger, log = self.ledger, self.ledger.log
        if sequence not in producer.batches:
            sizes = [self.rng.choice((40, 120, 700, 3000)) for _ in range(self.rng.randint(1, BATCH_MAX))]
            payloads = [payload_of(producer.number, self.rng.getrandbits(63), size) for size in sizes]
            ledger.prepare(producer, sequence, payloads)
        payloads, before = producer.batches[sequence], len(log.sent)
        is_new = sequence >= ledger.once.next_of(producer.run)
        if is_new:
            log.prepare(payloads)
        assert producer.who is not None
        answer = self._ask(connection, producer.who, sequence, payloads)
        ledger.answered(producer, sequence, answer)
        if answer.kind is ProducedKind.STORED:
            log.acknowledged = len(log.sent)
            return True
        if is_new:
            del log.sent[before:]
        if answer.kind is ProducedKind.GAP and answer.first in producer.batches:  # the power has taken what was told
            producer.sequence = answer.first
        elif answer.kind is not ProducedKind.DUPLICATE:
            self._begin(connection, producer)
        return answer.kind is ProducedKind.DUPLICATE

    def _ask(self, connection: wire.Wire, who: ProducerEpoch, sequence: int, contents: Sequence[bytes]) -> Produced:
        batch = wire.batch(STREAM, TOPIC, wire.to_partition(0), [wire.message(each) for each in contents])
        head = send_once_head(who.producer, who.epoch, sequence)
        return Produced.read(Reader(connection.request(ExtensionCode.SEND_ONCE, head + batch)))
