"""The parts of a partition (native/src/log/partition): a file names no field of a part that is not its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"
FOLDER = NATIVE / "src" / "log" / "partition"
# Member of `struct partition` -> the header and source of its type.
PARTS = {
    "checkpoint": "checkpoint",
    "damage": "damage_map",
    "history": "history",
    "ids": "message_ids",
    "journal": "journal",
    "large": "large_append",
    "offsets": "stored_offsets",
    "producers": "producer_guard",
    "retention": "retention",
    "roll": "roll_plan",
    "space": "space",
    "start": "log_start",
    "sync": "sync_progress",
}
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
FIELD = re.compile(r"\bp->(" + "|".join(PARTS) + r")(?:\.|->)\w")
PRIVATE = re.compile(r'^#include "log/partition/', re.MULTILINE)


def read_folder() -> dict[str, str]:
    return {path.name: COMMENT.sub(" ", path.read_text()) for path in sorted(FOLDER.glob("*.[ch]"))}


def strangers(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Part -> files beside its own that name its fields."""
    found: dict[str, set[str]] = {}
    for name, text in files.items():
        for member in FIELD.findall(text):
            if name.split(".")[0] != PARTS[member]:
                found.setdefault(member, set()).add(name)
    return found


def knows_partition(files: Mapping[str, str], member: str) -> bool:
    """Whether the files of a part name the partition around it."""
    own = [files.get(PARTS[member] + suffix, "") for suffix in (".h", ".c")]
    return any(re.search(r"\bpartition \*", text) for text in own)


def test_only_a_parts_own_file_names_its_fields() -> None:
    assert strangers(read_folder()) == {}


def test_a_part_knows_no_partition() -> None:
    files = read_folder()
    assert [member for member in PARTS if knows_partition(files, member)] == []


def test_only_the_folder_and_one_test_header_see_inside() -> None:
    paths = [path for path in NATIVE.rglob("*.[ch]") if "build" not in path.relative_to(NATIVE).parts]
    seen = {path for path in paths if PRIVATE.search(path.read_text())}
    assert {path for path in seen if path.parent != FOLDER} == {NATIVE / "tests" / "partition_inside.h"}


def test_a_planted_look_into_a_part_is_found() -> None:
    planted = {
        "one.c": "if (p->journal.length > 0) return;",
        "two.c": "return p->large->cut && journal_is_empty(&p->journal);",
        "journal.c": "p->journal.length = 0;",
    }
    assert strangers(planted) == {"journal": {"one.c"}, "large": {"two.c"}}
    assert knows_partition({"journal.h": "void journal_open(partition *p);"}, "journal")
