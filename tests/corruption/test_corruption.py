"""Damage inside history: the short form of the sweep, the scrubber, `shardd doctor log` and what isolation does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log.blocks import Codec
from shardd.server.data_directory import lock_directory
from tests.corruption.stage import DAMAGED, MESSAGES, SETTINGS, Stage, judge
from tests.corruption.sweep import (
    Case,
    canaries,
    cases,
    compressed_canaries,
    flipped,
    message_at,
    metadata_findings,
    run_case,
)
from tests.crash import faults
from tests.support import wire
from tests.unit.services_harness import Workers

STEP = 211
COMPRESSED_STEP = 97
METADATA_STEP = 7
WAIT_S = 60.0


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", "log", *arguments])
    return result.exit_code, result.output


def test_a_part_of_the_sweep_and_its_canaries(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        assert canaries(stage) == []
        ran = 0
        for case in cases(stage, STEP):
            assert run_case(stage, case) == [], str(case)
            ran += 1
        assert ran > 20
    count, findings = metadata_findings(tmp_path, METADATA_STEP)
    assert findings == [] and count > 100


def test_a_part_of_the_sweep_of_compressed_segments_and_its_canaries(tmp_path: Path) -> None:
    with Stage(tmp_path, codec=Codec("zstd", 3)) as stage:
        assert compressed_canaries(stage) == []
        ran = 0
        for case in cases(stage, COMPRESSED_STEP):
            if case.name.endswith(".blocks"):
                assert run_case(stage, case) == [], str(case)
                ran += 1
        assert ran > 20
        for slot in (64, 128):  # bytes that are reserved in a slot that is not whole any more
            case = Case(f"{0:020}.manifest", slot + 48, 1, while_open=False, lost=(), torn=False)
            assert run_case(stage, case) == []


def test_a_flip_under_an_open_partition_costs_its_message_only(tmp_path: Path) -> None:
    """In a sealed segment and in the active one; every strategy of a poll tells it, and no commit passes it."""
    with Stage(tmp_path) as stage:
        for name in (f"{stage.starts[0]:020}.log", f"{stage.starts[-1]:020}.log"):
            content = stage.files[name]
            victim = message_at(stage, name, len(content) // 2)
            stage.put({name: flipped(content, len(content) // 2, 4)}, while_open=True)
            assert judge(stage, [victim], torn=False) == []
            connection = stage.wire
            connection.store_offset(0, 0, 0, victim - 1) if victim else None
            for strategy, value in ((wire.POLL_OFFSET, victim), (wire.POLL_NEXT, 0)):
                with pytest.raises(wire.StatusError) as refusal:
                    connection.poll(0, 0, 0, strategy=strategy, value=value, count=5, auto_commit=True)
                assert refusal.value.status == DAMAGED
            assert connection.get_offset(0, 0, 0) == victim - 1
            assert stage.figures("damage.damaged_messages") == 1


def test_a_wrong_index_is_repaired_and_the_same_poll_gets_its_answer(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        name = f"{stage.starts[0]:020}.index"
        for wrong in (bytes(len(stage.files[name])), b"", stage.files[name][16:]):
            stage.put({name: wrong}, while_open=True)
            seen = stage.read(count=2)
            assert not seen.refused and not seen.broken and len(seen.served) == MESSAGES
            assert (stage.directory / name).read_bytes() == stage.files[name]
            assert stage.figures("damage.damaged_messages") == 0


def test_two_wrong_indexes_cost_one_poll_no_error(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        first, second = stage.starts[:2]
        stage.put({f"{start:020}.index": bytes(64) for start in (first, second)}, while_open=True)
        messages = stage.wire.poll(0, 0, 0, value=first + 1, count=second - first).messages
        assert [each.offset for each in messages] == list(range(first + 1, second + 1))
        assert stage.figures("damage.indexes_repaired") == 2


def test_a_segment_is_not_surveyed_again_and_again(tmp_path: Path) -> None:
    """What cannot be repaired (a segment that is gone) gets a typed status, and is read once in a while only."""
    with Stage(tmp_path) as stage:
        (stage.directory / f"{stage.starts[0]:020}.log").unlink()
        (stage.directory / f"{stage.starts[0]:020}.index").write_bytes(b"")
        for _ in range(5):
            with pytest.raises(wire.StatusError) as refusal:
                stage.wire.poll(0, 0, 0, value=2, count=1)
            assert refusal.value.status == 10002
        assert stage.figures("damage.surveys_failed") == 1
        assert stage.wire.poll(0, 0, 0, value=stage.starts[1], count=1).messages


def test_the_scrubber_finds_what_nobody_reads(tmp_path: Path) -> None:
    settings = {"system.scrubber.enabled": "true", "system.scrubber.pause": "10 ms", "system.scrubber.rate": "1 GiB"}
    with Stage(tmp_path, settings) as stage:
        stage.wait_for("scrubber.bytes", 1, WAIT_S)  # its first rounds may have come before the messages
        stage.wait_for("scrubber.rounds", stage.figures("scrubber.rounds") + 1, WAIT_S)
        assert stage.figures("scrubber.contradictions") == 0
        log, index = f"{stage.starts[1]:020}.log", f"{stage.starts[0]:020}.index"
        changes = {log: flipped(stage.files[log], 100, 1), index: flipped(stage.files[index], 20, 1)}
        stage.put(changes, while_open=True)
        stage.wait_for("damage.damaged_messages", 1, WAIT_S)
        stage.wait_for("damage.indexes_repaired", 1, WAIT_S)
        rounds = stage.figures("scrubber.rounds")
        stage.wait_for("scrubber.rounds", rounds + 2, WAIT_S)  # passes over what is known
        assert stage.figures("damage.damaged_messages") == 1
        assert (stage.directory / index).read_bytes() == stage.files[index]
        assert stage.read().refused == {stage.starts[1]: DAMAGED}


def test_doctor_log_shows_damage_isolates_it_and_polls_pass_over(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        log, active = f"{stage.starts[1]:020}.log", f"{stage.starts[-1]:020}.log"
        status, text = doctor(str(tmp_path))
        assert status == 0, text
        stage.put(
            {log: flipped(stage.files[log], 100, 1), active: flipped(stage.files[active], 90, 1)}, while_open=False
        )
        victims = [stage.starts[1], stage.starts[-1]]
        messages = stage.messages
        status, text = doctor(str(tmp_path))
        assert (status, text.count("damage:")) == (1, 2), text
    before = {path.name: path.read_bytes() for path in stage.directory.glob("*.log")}
    status, text = doctor(str(tmp_path), "--repair", "--stream", "7", "--yes")
    assert status == 0 and "segments 0" in text
    status, text = doctor(str(tmp_path), "--repair", "--yes")
    assert (status, text.count("isolated in")) == (0, 2), text
    status, text = doctor(str(tmp_path))
    assert (status, text.count("isolated: offsets")) == (0, 2), text
    assert {path.name: path.read_bytes() for path in stage.directory.glob("*.log")} == before
    with Workers(tmp_path, segment_size="512 B", settings=SETTINGS) as workers:
        connection = workers.connect()
        found = connection.poll(0, 0, 0, value=0, count=100).messages
        assert [each.raw for each in found] == [each.raw for each in messages if each.offset not in victims]
        for victim in victims:
            [behind] = connection.poll(0, 0, 0, value=victim, count=1).messages
            assert behind.offset == victim + 1
        connection.send(0, 0, wire.to_partition(0), [wire.message(b"goes on")])
        [newest] = connection.poll(0, 0, 0, strategy=wire.POLL_LAST, count=1).messages
        assert newest.offset == MESSAGES


def test_doctor_log_leaves_a_directory_in_use_alone(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)  # as the supervisor holds it
    try:
        status, text = doctor(str(tmp_path), "--repair", "--yes")
        assert status == 2 and "in use" in text, text
        assert doctor(str(tmp_path))[0] == 0
    finally:
        os.close(lock)
    assert doctor(str(tmp_path / "nothing"))[0] == 2


def test_an_index_entry_that_leads_into_a_payload_serves_nothing_of_it(tmp_path: Path) -> None:
    """A record whose payload ends with what looks like that record: every flipped bit of the entry before it."""
    with Stage(tmp_path) as stage:
        name = f"{stage.starts[1]:020}"
        victim = stage.starts[1] + 1
        before, message = stage.messages[victim - 1], stage.messages[victim]
        end_before, rest = len(before.raw), stage.files[f"{name}.log"][len(before.raw) + len(message.raw) :]
        bits = [bit for bit in range(8, 13) if end_before ^ 1 << bit > end_before + len(message.raw)]
        assert bits
        for bit in bits:
            hidden = faults.record(message, victim, b"forged", message.timestamp_us)
            begins = (end_before ^ 1 << bit) - end_before  # in the record, where the wrong entry leads
            payload = bytes(begins - 64) + hidden[: len(hidden) - len(message.headers)]
            whole = faults.record(message, victim, payload, message.timestamp_us)
            assert whole[begins:] == hidden
            log = before.raw + whole + rest
            ends = [len(before.raw), len(before.raw) + len(whole)]
            moved = len(whole) - len(message.raw)
            entries = bytearray(stage.files[f"{name}.index"])
            for at in range(0, len(entries), 16):
                end = int.from_bytes(entries[at + 4 : at + 8], "little") + (moved if at else 0)
                entries[at + 4 : at + 8] = end.to_bytes(4, "little")
            assert int.from_bytes(entries[20:24], "little") == ends[1]
            right = bytes(entries)
            entries[4:8] = (ends[0] ^ 1 << bit).to_bytes(4, "little")
            stage.put({f"{name}.log": log, f"{name}.index": right, f"{name}.manifest": b""}, while_open=False)
            (stage.directory / f"{name}.index").write_bytes(entries)
            [found] = stage.wire.poll(0, 0, 0, value=victim, count=1).messages
            assert found.payload == payload and found.raw == whole
            assert (stage.directory / f"{name}.index").read_bytes() == right
