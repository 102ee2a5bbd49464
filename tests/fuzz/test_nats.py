"""The short form of `make fuzz-liftbridge`, and what it must find."""

from __future__ import annotations

import random

import pytest

from shardd.protocol import nats
from shardd.protocol.liftbridge.envelope import decode_publish
from tests.fuzz.nats import ENVELOPES, FindingError, check_envelope, check_requests, fuzz


def test_mutated_envelopes_and_requests_are_read_or_refused() -> None:
    kinds = fuzz(20_000, 7, report=lambda line: None)
    assert kinds["plain"] > 2_000 and kinds["envelope"] > 1_000 and kinds["requests"] > 2_000
    assert {"Parser Error", "Unknown Protocol Operation", "Maximum Payload Violation"} <= kinds.keys()


def test_a_decoder_that_raises_is_found() -> None:
    def planted(data: bytes) -> object:
        if len(data) < 12:
            raise IndexError
        return decode_publish(data)

    with pytest.raises(FindingError, match="IndexError"):
        for envelope in ENVELOPES:
            check_envelope(envelope[:9], planted)


def test_a_parser_that_minds_the_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = nats.Requests.feed

    def planted(self: nats.Requests, data: bytes) -> None:
        feed(self, data[1:] if self.waiting_bytes > 3 else data)

    monkeypatch.setattr(nats.Requests, "feed", planted)
    with pytest.raises(FindingError, match="in pieces"):
        for number in range(100):
            check_requests(b"PING\r\nPING\r\nPUB a 1\r\nx\r\n", random.Random(number))
