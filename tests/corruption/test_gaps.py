"""A worker with segments that have no record for some offsets: what its clients see, what damage costs in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import encode_manifest
from tests.corruption.stage import DAMAGED, MESSAGES, Stage
from tests.corruption.sweep import flipped
from tests.support import wire
from tests.unit import log_files

WAIT_S = 20.0


def stored(stage: Stage, start: int, end: int) -> log_files.Stored:
    index = stage.files[f"{start:020}.index"]
    ends = [int.from_bytes(index[at + 4 : at + 8], "little") for at in range(0, 16 * (end - start), 16)]
    return log_files.Stored(start, stage.files[f"{start:020}.log"], index, [0, *ends])


def thin(stage: Stage) -> tuple[dict[str, bytes], list[int]]:
    """Files of the partition without some records of its sealed segments, and the offsets that are left."""
    incarnation = read_incarnation(stage.directory)
    assert incarnation is not None
    changes: dict[str, bytes] = {}
    left: list[int] = []
    for start, end in zip(stage.starts, [*stage.starts[1:], MESSAGES], strict=True):
        kept = list(range(start, end))
        if end < MESSAGES and end - start > 2:
            kept = kept[1:-1] if start % 2 else [start, *kept[2:]]
            segment = log_files.thinned(stored(stage, start, end), kept)
            manifest = log_files.manifest_of(segment, end, incarnation=incarnation)
            files = {"log": segment.log, "index": segment.index, "manifest": encode_manifest(manifest)}
            changes |= {f"{start:020}.{suffix}": content for suffix, content in files.items()}
        left += kept
    assert len(left) < MESSAGES - 2
    return changes, left


def offsets(answer: wire.Polled) -> list[int]:
    return [each.offset for each in answer.messages]


def test_polls_of_every_kind_pass_over_what_is_not_there(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        changes, left = thin(stage)
        stage.put(changes, while_open=False)
        connection = stage.wire
        times = {each.offset: each.timestamp_us for each in stage.messages}
        assert list(stage.read(3).served) == left and stage.read(100).refused == {}
        for at in range(MESSAGES):
            behind = [each for each in left if each >= at]
            for count in (1, 3, 100):
                assert offsets(connection.poll(0, 0, 0, value=at, count=count)) == behind[:count]
                stamp = [each for each in left if times[each] >= times[at]]
                found = connection.poll(0, 0, 0, strategy=wire.POLL_TIMESTAMP, value=times[at], count=count)
                assert offsets(found) == stamp[:count]
            connection.store_offset(0, 0, 0, at)
            following = [each for each in left if each > at]
            assert offsets(connection.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=2)) == following[:2]
            if at:
                assert offsets(connection.poll(0, 0, 0, strategy=wire.POLL_LAST, count=at)) == left[-at:]
        assert offsets(connection.poll(0, 0, 0, strategy=wire.POLL_FIRST, count=4)) == left[:4]
        seen = []
        connection.store_offset(0, 0, 0, 0)
        for _ in range(MESSAGES):
            answer = connection.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=2, auto_commit=True)
            seen += offsets(answer)
        assert seen == [each for each in left if each > 0]
        connection.send(0, 0, wire.to_partition(0), [wire.message(b"goes on")])
        assert offsets(connection.poll(0, 0, 0, strategy=wire.POLL_LAST, count=1)) == [MESSAGES]


def test_damage_in_a_sparse_segment_costs_up_to_the_next_record(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        changes, left = thin(stage)
        for name in [name for name in changes if name.endswith(".log")]:
            damaged = flipped(changes[name], len(changes[name]) // 2, 4)
            stage.put(changes, while_open=False)
            (stage.directory / name).write_bytes(damaged)  # under the open partition
            seen = stage.read(100)
            lost = [each for each in left if each not in seen.served]
            assert len(lost) == 1 and set(seen.refused.values()) == {DAMAGED}
            low = max((each for each in left if each < lost[0]), default=-1)
            high = min(each for each in left if each > lost[0])
            assert low < min(seen.refused) and max(seen.refused) < high
            with pytest.raises(wire.StatusError):
                stage.wire.poll(0, 0, 0, value=lost[0], count=1)


def test_a_wrong_index_of_a_sparse_segment_is_repaired_by_the_poll_that_meets_it(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        changes, left = thin(stage)
        for name in [name for name in changes if name.endswith(".index")]:
            for wrong in (bytes(len(changes[name])), changes[name][16:] + changes[name][:16], b""):
                stage.put(changes, while_open=False)
                (stage.directory / name).write_bytes(wrong)
                seen = stage.read(100)
                assert (list(seen.served), seen.refused) == (left, {}), name
                assert (stage.directory / name).read_bytes() == changes[name]


def test_the_scrubber_reads_sparse_segments_and_finds_damage_there(tmp_path: Path) -> None:
    settings = {"system.scrubber.enabled": "true", "system.scrubber.pause": "10 ms"}
    with Stage(tmp_path, settings) as stage:
        changes, _ = thin(stage)
        stage.put(changes, while_open=False)
        rounds = stage.figures("scrubber.rounds")
        stage.wait_for("scrubber.rounds", rounds + 2, WAIT_S)  # it may have met files of which only some were replaced
        surveys = stage.figures("damage.surveys")
        stage.wait_for("scrubber.rounds", rounds + 5, WAIT_S)
        assert stage.figures("damage.damaged_messages") == 0
        assert stage.figures("damage.surveys") == surveys
        name = next(name for name in changes if name.endswith(".log"))
        (stage.directory / name).write_bytes(flipped(changes[name], len(changes[name]) - 5, 4))
        stage.wait_for("damage.damaged_ranges", 1, WAIT_S)
