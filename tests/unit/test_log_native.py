"""The native batch rules against the recorded answers of the reference server (`better` wins over `bug`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.engine import _native
from tests.support.golden import Step, command_code, load, request_bytes

RECORD = Path(__file__).parents[1] / "golden" / "data" / "classic-0.8.0.jsonl.xz"
SEND_MESSAGES = 101
SCENARIOS = (
    "send-batch-errors",
    "send-metadata-errors",
    "send-last-index-position",
    "send-short-frames",
    "send-reserved",
    "send-key",
)
# Decided after the batch rules, from the metadata: the parser alone accepts these requests.
METADATA_STATUSES = {1009, 2010, 3007, 41}


def send_steps(name: str) -> list[Step]:
    (scenario,) = [scenario for scenario in load(RECORD) if scenario.name == name]
    return [step for step in scenario.steps if command_code(step) == SEND_MESSAGES]


@pytest.mark.parametrize("name", SCENARIOS)
def test_statuses_equal_the_golden_record(name: str) -> None:
    steps = send_steps(name)
    assert steps
    for step in steps:
        expected = step["better"]["status"] if "better" in step else step["status"]
        status, parsed = _native.send_request_parse(request_bytes(step, {})[8:])
        assert status == (0 if expected in METADATA_STATUSES else expected), step.get("note")
        assert (parsed is None) == (status != 0)


def test_owner_is_the_placement_of_the_reference() -> None:
    assert [_native.owner(0, shards) for shards in (1, 2, 3, 4, 6, 8, 16, 64)] == [0, 1, 1, 1, 1, 5, 5, 5]
    assert [_native.owner(4297064451, shards) for shards in (2, 3, 4, 6, 8, 16, 64)] == [1, 0, 1, 3, 1, 9, 25]


@pytest.mark.parametrize("arguments", [(-1, 2), (2**64, 2), (0, 0), (0, 2**32)])
def test_owner_refuses_what_does_not_fit(arguments: tuple[int, int]) -> None:
    with pytest.raises((OverflowError, ValueError)):
        _native.owner(*arguments)


def test_batch_assign_refuses_bytes_that_are_no_records() -> None:
    with pytest.raises(ValueError, match="records"):
        _native.batch_assign(bytes(63), 1, 0, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="records"):
        _native.batch_assign(bytes(64), 2, 0, 0, 0, 0, 0)


def test_scans_of_a_bad_descriptor_raise() -> None:
    with pytest.raises(OSError, match="descriptor"):
        _native.scan_file(-1, 0, 0, 0, 0, -1)
    with pytest.raises(OSError, match="descriptor"):
        _native.find_later(-1, 0, 0)
