"""The table of statuses: whatever the server can answer has its name (docs/protocol/statuses.md)."""

from __future__ import annotations

from pathlib import Path

from shardd.protocol.errors import Status
from tests.support import golden

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "golden" / "data"
NAMES = {
    1: "error",
    3: "invalid_command",
    1006: "cannot_create_stream",
    1009: "stream_id_not_found",
    2006: "cannot_create_topic",
    2010: "topic_id_not_found",
    3007: "partition_not_found",
    4101: "invalid_reserved_field",
    5000: "consumer_group_id_not_found",
}


def test_names_are_those_of_the_protocol() -> None:
    assert {number: Status(number).http_code for number in NAMES} == NAMES


def test_every_recorded_status_has_a_name() -> None:
    recorded = set()
    for file in sorted(DATA.glob("*.jsonl.xz")):
        for scenario in golden.load(file):
            for step in scenario.steps:
                recorded |= {step.get("status"), step.get("better", {}).get("status")}
    recorded -= {None}
    assert len(recorded) >= 40
    assert recorded <= {int(status) for status in Status}
