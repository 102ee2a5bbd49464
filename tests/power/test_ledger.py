"""The judge of the power cuts sees what it must see: every kind of fault is planted once."""

from __future__ import annotations

import pytest

from tests.power.ledger import EpochLedger, LogLedger, MetadataLedger, OffsetLedger, Tally, payload_of
from tests.support.wire import Message

SENT = [payload_of(1, number, 40) for number in range(10)]


def message(offset: int, payload: bytes, timestamp_us: int = 1000) -> Message:
    return Message(offset, timestamp_us, 0, bytes(16), 0, 0, payload, b"", b"")


def messages(count: int) -> list[Message]:
    return [message(offset, SENT[offset]) for offset in range(count)]


def ledger(level: str = "durable", acknowledged: int = 6, synced: int = 0) -> LogLedger:
    log = LogLedger("log/0", level, acknowledged=acknowledged, synced=synced)
    log.prepare(SENT)
    return log


def kinds(log: LogLedger, found: list[Message], tally: Tally | None = None, end: int = 0) -> set[str]:
    return {finding.kind for finding in log.judge(found, tally or Tally(), end)}


@pytest.mark.parametrize("count", range(11))
def test_durable_needs_every_acknowledged_message_and_allows_the_others(count: int) -> None:
    assert kinds(ledger(), messages(count)) == (set() if count >= 6 else {"lost"})


def test_what_was_read_at_durable_is_due() -> None:
    log = ledger()
    log.read = 8
    assert kinds(log, messages(7)) == {"lost"}


def test_written_needs_what_was_synced_and_counts_the_rest() -> None:
    tally = Tally()
    assert kinds(ledger("written", 6, 3), messages(4), tally) == set()
    assert (tally.lost, tally.lossy_cuts) == (2, 1)
    assert kinds(ledger("written", 6, 3), messages(2)) == {"lost"}


def test_faults_in_what_is_there_are_found() -> None:
    swapped = messages(8)
    swapped[2], swapped[3] = message(2, SENT[3]), message(3, SENT[2])
    assert "reordered" in kinds(ledger(), swapped)
    repeated = [*messages(8), message(8, SENT[7])]
    assert "reordered" in kinds(ledger(), repeated)
    assert "foreign" in kinds(ledger(), [*messages(8), message(8, b"not of this run")])
    falling = [*messages(7), message(7, SENT[7], 999)]
    assert "clock" in kinds(ledger(), falling)
    shifted = [message(offset + 1, SENT[offset]) for offset in range(8)]
    assert "reordered" in kinds(ledger(), shifted)


def test_a_hole_is_legal_behind_what_is_due_and_stays_a_hole() -> None:
    holed = [*messages(6), message(8, SENT[8])]
    assert "lost" in kinds(ledger(acknowledged=7), holed)
    log, tally = ledger(), Tally()
    assert kinds(log, holed, tally, 10) == set()
    assert tally.withheld == 2
    more = payload_of(2, 1, 40)
    log.prepare([more])
    log.acknowledged += 1
    assert kinds(log, [*holed, message(10, more)]) == set()
    assert kinds(log, holed) == {"lost"}


def test_deleted_segments_may_be_gone_and_nothing_behind_them() -> None:
    log = ledger()
    log.first = log.first_max = 3
    tally = Tally()
    assert kinds(log, messages(8)[2:], tally) == set()
    assert tally.returned == 1
    log = ledger()
    log.first = log.first_max = 3
    assert kinds(log, messages(8)[4:]) == {"lost"}


def test_a_purge_is_all_or_nothing() -> None:
    for found, findings in (([], set[str]()), (messages(8), set()), (messages(3), {"lost"})):
        epochs = EpochLedger(ledger())
        epochs.begin_purge()
        assert {finding.kind for finding in epochs.judge(found, Tally())} == findings
    epochs = EpochLedger(ledger())
    epochs.begin_purge()
    epochs.end_purge()
    assert {finding.kind for finding in epochs.judge(messages(2), Tally())} == {"foreign"}


@pytest.mark.parametrize(("found", "wrong"), [(None, True), (1, True), (5, False), (2, False), (4, True)])
def test_a_stored_offset_is_the_acknowledged_one_or_a_later_one(found: int | None, wrong: bool) -> None:
    offsets = OffsetLedger("log/0", "durable", [None, 1, 5, 2], acknowledged=2)
    assert bool(offsets.judge(found, 9, Tally())) == wrong


def test_a_stored_offset_beyond_the_log_is_clamped() -> None:
    assert not OffsetLedger("log/0", "written", [None, 8], acknowledged=1, synced=1).judge(4, 4, Tally())
    assert OffsetLedger("log/0", "written", [None, 8], acknowledged=1, synced=1).judge(8, 4, Tally())


def test_metadata_is_what_was_acknowledged_or_what_was_under_way() -> None:
    one, two, three = (frozenset({("stream", name)}) for name in "abc")
    for found, wrong in ((one, False), (two, False), (three, True), (frozenset[tuple[str, ...]](), True)):
        metadata = MetadataLedger(one)
        metadata.begin(two)
        assert bool(metadata.judge(found)) == wrong


def test_what_is_withheld_takes_no_place_of_a_message() -> None:
    log = ledger()
    log.sent = [b"0", b"1", None, None, b"4", None]
    assert [log.last(count) for count in range(1, 5)] == [4, 1, 0, 0]
