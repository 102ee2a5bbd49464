"""Garbage collection in the process of a door (shardd.runtime.collector): it stands in no turn of the loop for long."""

from __future__ import annotations

import re
from pathlib import Path

from tests.doors.collected_door import KEPT
from tests.doors.door_server import DoorServer
from tests.support.stalls import wait_until

TOLD = re.compile(r"collections (\d+), objects (\d+), longest [\d.]+ ms")


def test_collections_of_a_door_with_many_objects_look_only_at_what_is_new(tmp_path: Path) -> None:
    with DoorServer(tmp_path / "data", doors=("collected",)) as server:
        wait_until(lambda: TOLD.search(server.log()) is not None, "the door has told of its collections")
        told = TOLD.search(server.log())
        assert told is not None
        count, objects = int(told[1]), int(told[2])
        assert count > 10
        assert objects < KEPT // 4, f"a collection looked at {objects} objects"
