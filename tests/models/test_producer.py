"""A producer of each kind of delivery, whatever happens to topic and connections. The canaries show that the model
finds what it is for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from shardd.client import idempotence, link, outbox
from shardd.client.errors import Fate
from tests.models.canaries import finds
from tests.models.world import model_settings
from tests.models.writers import AtMostOnceWorld, OnceWorld, WriterWorld


@pytest.mark.parametrize("machine", [WriterWorld, OnceWorld, AtMostOnceWorld])
def test_producer_tells_the_fate_of_every_message(machine: Any) -> None:
    run_state_machine_as_test(machine, settings=model_settings(30))


def test_producer_that_sends_again_what_may_be_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = outbox.Lane.settle
    monkeypatch.setattr(outbox.Lane, "settle", lambda lane, now, _: settle(lane, now, True))
    finds(AtMostOnceWorld)


def test_producer_that_says_not_sent_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(connection: link.Link, error: Exception | None) -> None:
        connection._exchange._fate = Fate.NOT_SENT
        LOST(connection, error)

    monkeypatch.setattr(link.Link, "connection_lost", lost)
    finds(WriterWorld)


def test_idempotent_producer_that_numbers_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def head(once: idempotence.Sequencer, lane: Any, batch: Any) -> bytes:
        batch.sequence = None
        return HEAD(once, lane, batch)

    monkeypatch.setattr(idempotence.Sequencer, "head", head)
    finds(OnceWorld)


def test_idempotent_producer_that_begins_an_epoch_in_doubt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence.Sequencer, "is_settled", True)
    finds(OnceWorld)


def test_producer_that_turns_its_batches_round_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(lane: outbox.Lane, now: float, again: bool) -> Any:
        ended = SETTLE(lane, now, again)
        if len(lane.waiting) > 1:
            lane.waiting.rotate()
        return ended

    monkeypatch.setattr(outbox.Lane, "settle", settle)
    finds(WriterWorld)


HEAD = idempotence.Sequencer.head
LOST = link.Link.connection_lost
SETTLE = outbox.Lane.settle
