"""What the judge holds for right, and what not: alone, and by what a real server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import wire
from tests.support.load import Target
from tests.support.server import Server
from tests.vopr import judge
from tests.vopr.archive import Archive
from tests.vopr.backups import Backups
from tests.vopr.judge import (
    BATCH_BYTES_MOST,
    HEAD_BYTES,
    LATE_S,
    SEGMENT_BYTES,
    SEGMENT_BYTES_MOST,
    Ledger,
    Look,
    Rules,
)
from tests.vopr.plan import COUNT, KINDS, SETTINGS
from tests.vopr.run import Run
from tests.vopr.subject import STREAM, Subject

LONGEST, LARGEST = 40, 900
WAIT_S = 60.0


class Driven:
    """A subject whose steps are chosen by a test, of a server that does nothing by itself but to remove."""

    def __init__(self, root: Path, server: Server, connection: wire.Wire, kind: str) -> None:
        number, chosen = next((number, each) for number, each in enumerate(KINDS) if each.name == kind)
        self.found: list[str] = []
        target = Target(server.address, STREAM, kind)
        archive = Archive(server.data_dir, root / "archive")
        self.subject = Subject(target, chosen, number, 0, archive, threading.Lock(), self.found.append)
        target.topic = self.subject.name
        self.root, self.server, self.connection = root, server, connection
        self.subject._make(connection)

    def send(self, partition: int, count: int, size: int) -> None:
        first = self.subject.next_number
        self.subject.next_number += count
        self.subject.sendings[partition].waiting = list(range(first, first + count)), size
        self.subject._send(self.connection, partition)

    def look(self) -> None:
        self.subject.look(self.connection)

    def delete(self, partition: int, count: int) -> None:
        self.subject.delete(self.connection, partition, count)

    def start(self, partition: int) -> int:
        return self.subject.ledgers[partition].start

    def wait_for_start(self, partition: int, offset: int) -> None:
        """Nobody judges meanwhile."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            first = self.connection.poll(
                STREAM, self.subject.name, partition, strategy=wire.POLL_FIRST, count=1
            ).messages
            if first and first[0].offset >= offset:
                return
            time.sleep(0.02)
        raise TimeoutError(f"the log does not begin at {offset}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server, wire.Wire]]:
    root = tmp_path_factory.mktemp("judge")
    with Server(root / "data", SETTINGS) as server, wire.connect(server.address) as connection:
        connection.create_stream(STREAM)
        yield root, server, connection


def test_deletion_behind_a_limit_of_count_is_by_right(served: tuple[Path, Server, wire.Wire]) -> None:
    """The limit leaves the last 200; the deletion goes on from there, up to three segments."""
    driven = Driven(*served, "count")
    for _ in range(25):
        driven.send(0, 20, LARGEST)
    driven.look()
    driven.wait_for_start(0, 500 - int(COUNT))
    driven.delete(0, 3)
    assert driven.start(0) > 500 - int(COUNT)
    assert driven.found == []


def test_deletion_of_the_largest_segment_is_by_right(served: tuple[Path, Server, wire.Wire]) -> None:
    """One batch fills it, and the next one finds it full and is its last."""
    driven = Driven(*served, "once")
    one = HEAD_BYTES + LARGEST
    for _ in range((SEGMENT_BYTES - 1) // one):
        driven.send(0, 1, LARGEST)
    for _ in range(3):
        driven.send(0, LONGEST, LARGEST)
    driven.look()
    driven.delete(0, 1)
    removed = driven.start(0) * one
    assert SEGMENT_BYTES + 2 * BATCH_BYTES_MOST - one < removed <= SEGMENT_BYTES_MOST
    assert driven.found == []


def test_deletion_in_one_partition_explains_a_small_topic_of_two(served: tuple[Path, Server, wire.Wire]) -> None:
    """Its size has taken from the other partition before: that one has most of it, and the oldest messages."""
    driven = Driven(*served, "size")
    for partition, batches in ((1, 30), (0, 10)):
        for _ in range(batches):
            driven.send(partition, LONGEST, LARGEST)
    driven.look()
    driven.wait_for_start(1, 1)
    for _ in range(4):
        driven.delete(0, 3)
    assert driven.start(0) > 0
    assert driven.start(1) > 0
    assert driven.found == []


def test_purge_without_an_answer_is_settled_before_the_last_look(served: tuple[Path, Server, wire.Wire]) -> None:
    """Else what it has removed would be lost, and missing in a backup."""
    driven = Driven(*served, "kept")
    driven.send(0, LONGEST, LARGEST)
    driven.look()
    driven.connection.purge_topic(STREAM, driven.subject.name)
    driven.subject.work = driven.subject._purge
    with (driven.root / "vopr.log").open("w") as log:
        run = Run(driven.root, 0, log)
        run.server, run.subjects = driven.server, [driven.subject]
        backups = Backups(driven.root, driven.server, run.subjects, 0, driven.found.append, {})
        assert {each.life for each in backups._known().values()} == {-1}
        run._look_at_all()
    assert driven.found == []
    assert {each.life for each in backups._known().values()} == {2}


# ---- the judge alone ----


def judged(rules: Rules, sizes: Sequence[int]) -> tuple[Ledger, list[str]]:
    """A ledger of messages of these sizes, all of them seen."""
    found: list[str] = []
    ledger = Ledger(1, 0, found.append)
    ledger.new_life(rules)
    for number, size in enumerate(sizes):
        ledger.sending([number], size, once=False)
        ledger.acknowledged([number], number)
    return ledger, found


def test_canary_a_start_that_no_rule_explains_is_found() -> None:
    found: list[str] = []
    ledger = Ledger(1, 0, found.append)
    ledger.judge(Look(0, 0, []))
    assert found == []
    ledger.judge(Look(3, 3, []))
    assert any("removed: " in each for each in found)


def test_a_start_that_a_limit_explains_is_none() -> None:
    ledger, found = judged(Rules(retention=True, messages=2), [40] * 5)
    ledger._judge_start(Look(3, 5, []))
    assert found == []
    ledger._judge_start(Look(4, 5, []))
    assert len(found) == 1


def test_canary_a_deletion_goes_no_further_than_its_segments() -> None:
    ledger, found = judged(Rules(retention=True, messages=200), [LARGEST] * 1000)
    ledger.deletes(1)
    ledger.deleted(1)
    most = 800 + -(-SEGMENT_BYTES_MOST // (HEAD_BYTES + LARGEST))
    ledger._judge_start(Look(most, 1000, []))
    assert found == []
    ledger._judge_start(Look(most + 1, 1000, []))
    assert len(found) == 1


def test_canary_a_deletion_without_an_answer_explains_its_segments_once() -> None:
    ledger, found = judged(Rules(), [LARGEST] * 1000)
    ledger.deletes(1)
    most = -(-SEGMENT_BYTES_MOST // (HEAD_BYTES + LARGEST))
    ledger._judge_start(Look(most, 1000, []))
    ledger.start = most
    assert found == []
    ledger._judge_start(Look(most + 1, 1000, []))
    assert len(found) == 1


def test_canary_deletion_that_got_no_answer_a_minute_ago_explains_nothing() -> None:
    ledger, found = judged(Rules(), [LARGEST] * 1000)
    ledger.deletes(1)
    ledger.late[0].until_s = 0.0
    ledger._judge_start(Look(1, 1000, []))
    assert len(found) == 1 and ledger.late_budget_bytes == 0


def test_canary_deletion_without_an_answer_ends_though_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each explains its own segments until its own end."""
    now_s = 1000.0
    monkeypatch.setattr(judge, "time", SimpleNamespace(monotonic=lambda: now_s))
    ledger, found = judged(Rules(), [LARGEST] * 1000)
    for _ in range(3):
        ledger.deletes(1)
        now_s += 0.4 * LATE_S
    ledger.looked_s = now_s  # the first one is over, and the others are not
    two = -(-2 * SEGMENT_BYTES_MOST // (HEAD_BYTES + LARGEST))
    ledger._judge_start(Look(two, 1000, []))
    assert found == []
    ledger.start = two
    ledger._judge_start(Look(two + 1, 1000, []))
    assert len(found) == 1


def test_deletion_that_ended_since_the_last_look_is_by_right(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(judge, "time", SimpleNamespace(monotonic=lambda: now_s))
    ledger, found = judged(Rules(), [LARGEST] * 1000)
    ledger.deletes(1)
    now_s += 2 * LATE_S  # a server that stood still gave no look meanwhile
    ledger._judge_start(Look(1, 1000, []))
    assert found == []


def test_canary_deletion_without_an_answer_explains_a_small_topic_for_a_minute(tmp_path: Path) -> None:
    """Also where its partition has lost nothing since: others of the topic have."""
    found: list[str] = []
    number, kind = next((number, each) for number, each in enumerate(KINDS) if each.name == "size")
    archive = Archive(tmp_path, tmp_path)
    subject = Subject(Target("nowhere", STREAM, "size"), kind, number, 0, archive, threading.Lock(), found.append)
    nothing = [Look(0, 0, [])] * len(subject.ledgers)
    subject.ledgers[0].deletes(1000)
    subject._judge_topic(nothing)
    assert found == []
    subject.ledgers[0].late[0].until_s = 0.0
    subject._judge_topic(nothing)
    assert len(found) == 1 and found[0].endswith(f": 0 bytes are left of {kind.topic_bytes}")
    subject.ledgers[0].deletes(1)
    assert subject.ledgers[0].late_budget_bytes == SEGMENT_BYTES_MOST, "what has ended does not begin again"


def test_message_that_left_unseen_and_is_told_of_later_counts_once() -> None:
    found: list[str] = []
    ledger = Ledger(1, 0, found.append)
    ledger.changes(Rules(retention=True, topic_bytes=1))
    for number in range(3):
        ledger.sending([number], 40, once=True)
        ledger.acknowledged([number])
    ledger.judge(Look(3, 3, []))
    ledger.sending([0], 40, once=True)
    ledger.acknowledged([0], 0)  # it was sent again, and this answer names its offset
    ledger.judge(Look(3, 3, []))
    assert found == []


def test_canary_a_limit_of_size_leaves_what_it_allows() -> None:
    limit = 8 * SEGMENT_BYTES
    ledger, found = judged(Rules(retention=True, partition_bytes=limit), [LARGEST] * 1000)
    kept = (limit - SEGMENT_BYTES_MOST) // (HEAD_BYTES + LARGEST)
    ledger._judge_start(Look(1000 - kept - 1, 1000, []))
    assert found == []
    ledger._judge_start(Look(1000 - kept + 1, 1000, []))
    assert len(found) == 1
