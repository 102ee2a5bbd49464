"""Every bound of what is stored has an owner, a share and an end, or says why not
(docs/adr/0130-shares-of-stored-things.md). A new `*_MAX` in a file that stores something fails until it is listed.
Those with shares stand in docs/limits.md, whose table is made of them (limits_tables.py)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import pytest

from shardd.config.keys import KEYS
from tests.unit.test_tidy import ROOT

BOUND = re.compile(r"^(_?[A-Z][A-Z0-9_]*_MAX)(?:: Final)? = |^#define ([A-Z][A-Z0-9_]*_MAX) ", re.MULTILINE)
STORES = ("shardd/metadata/", "shardd/log/", "native/src/log/")  # and each file that writes by itself:
WRITES = re.compile(r"\b(InternalLog|write_durably)\(")


class Shared(NamedTuple):
    """A place for all users: what is stored there, whose the entries are, what one user may have, when they go, and the
    test that lets a user fill it and another one begin."""

    what: str
    owner: str
    share: str
    end: str
    test: str


ONE_THING = "the size of one thing, which takes no place of another one"
CREATED = "streams, topics, partitions and users are made by rights of their own"
WORK = "work or memory at a time; nothing of it is stored"
RANGE = "what a field can say"
READER = "what a reader takes of a file; the writer's bound is another one"

PRODUCERS: Final = Shared(
    "idempotent producers of a partition, a worker, the server",
    "the user that began it",
    "4,096, and as many as are left free",
    "server.producer_expiry, or with the account",
    "tests/server/test_producer_shares.py::test_as_many_producers_as_a_user_may_have_leave_room_in_a_partition",
)
LIFTBRIDGE_GROUPS: Final = Shared(
    "members of consumer groups of Liftbridge with their streams, of all groups",
    "the incarnation of the user that made the member",
    "USER_SIZE_MAX, and as much as is left free",
    "members that are silent leave; a group ends with its last member",
    "tests/unit/test_metadata_liftbridge_shares.py::test_users_together_leave_room_in_all_groups",
)
LIFTBRIDGE_GROUP: Final = LIFTBRIDGE_GROUPS._replace(
    what="members of consumer groups of Liftbridge with their streams, of one group",
    share="as much as is left free",
    test="tests/doors/test_liftbridge_group_shares.py::test_one_reader_cannot_take_every_member_of_a_group",
)
GROUPS: Final = Shared(
    "consumer groups",
    "the incarnation of the user that made it",
    "as many as are left free",
    "those of deleted accounts make room when no place is left",
    "tests/server/test_group_shares.py::test_one_user_cannot_take_every_group_and_its_groups_make_room_when_it_is_gone",
)
OFFSETS: Final = Shared(
    "stored offsets of a partition",
    "the incarnation of the user that stored last",
    "as many as are left free of system.partition.consumer_offsets_max",
    "offsets.expiry; those of deleted accounts make room when no place is left",
    "tests/server/test_offset_shares.py::test_one_user_cannot_take_every_stored_offset_of_a_partition",
)
CURSORS: Final = Shared(
    "cursors of Liftbridge",
    "the incarnation of the user that set it last",
    "as many as are left free",
    "set to -1; those of deleted accounts make room when no place is left",
    "tests/doors/test_liftbridge_cursor_shares.py::"
    "test_one_reader_cannot_take_every_cursor_and_its_cursors_make_room_when_it_is_gone",
)

BOUNDS: Final[dict[str, dict[str, Shared | str]]] = {
    "native/src/log/decode.h": {"DECODE_BYTES_MAX": WORK},
    "native/src/log/encode.c": {"HEADER_BYTES_MAX": ONE_THING},
    "native/src/log/file_cache.h": dict.fromkeys(("SEGMENT_PAIRS_MAX", "OFFSET_FILES_MAX", "SYNCS_MAX"), WORK),
    "native/src/log/id_window.c": {"GROW_MAX": WORK},
    "native/src/log/id_window.h": {"ID_WINDOW_ENTRIES_MAX": "ids of messages that a sender may send, not places"},
    "native/src/log/index_pages.c": {"BUCKET_BITS_MAX": WORK},
    "native/src/log/offsets.h": {"VICTIMS_MAX": WORK},
    "native/src/log/offsets_table.c": {"SEQUENCE_MAX": RANGE},
    "native/src/log/offsets_table.h": {"OFFSETS_PLACES_MAX": OFFSETS},
    "native/src/log/partition.h": dict.fromkeys(("INDEX_CACHE_MAX", "ID_GROUP_MAX", "CLEAN_SEGMENTS_MAX"), WORK),
    "native/src/log/partition/clean.c": {"DROPPED_MAX": WORK},
    "native/src/log/files.c": {"MAKE_ATTEMPTS_MAX": WORK},
    "native/src/log/files.h": {"FILE_PATH_MAX": ONE_THING},
    "native/src/log/partition/damage_map.h": {
        "DAMAGED_MAX": "damage of a device, which no user makes; further ranges are found again by each read",
    },
    "native/src/log/partition/poll.c": {"ANSWER_BYTES_MAX": WORK},
    "native/src/log/partition/space.h": {"RESERVE_BYTES_MAX": WORK},
    "native/src/log/producers.h": {
        "PRODUCERS_OF_PARTITION_MAX": PRODUCERS,
        "PRODUCERS_OF_WORKER_MAX": PRODUCERS,
        "PRODUCERS_FILE_BYTES_MAX": "follows from PRODUCERS_OF_PARTITION_MAX",
        "PRODUCERS_FILE_READ_MAX": READER,
    },
    "native/src/log/record.c": {"RECORD_SIZE_MAX": ONE_THING},
    "native/src/log/record.h": dict.fromkeys(("PAYLOAD_SIZE_MAX", "USER_HEADERS_SIZE_MAX"), ONE_THING),
    "native/src/log/recover.c": {"MANIFEST_READ_MAX": READER},
    "native/src/log/unpacked.h": dict.fromkeys(("UNPACKED_BYTES_MAX", "UNPACKED_FETCHES_MAX"), WORK),
    "shardd/doors/liftbridge/cursors.py": {
        "CURSORS_MAX": CURSORS,
        **dict.fromkeys(("NAME_BYTES_MAX", "_DIGITS_MAX"), ONE_THING),
    },
    "shardd/log/borders.py": dict.fromkeys(("GAPS_MAX", "CANDIDATES_MAX", "HASHED_BYTES_MAX"), WORK),
    "shardd/log/damage_survey.py": {"RANGES_MAX": WORK},
    "shardd/log/diagnosis.py": {"LOOKS_MAX": WORK},
    "shardd/log/file_modes.py": {"_DEPTH_MAX": WORK},
    "shardd/log/layout.py": dict.fromkeys(("_U32_MAX", "_U64_MAX"), RANGE),
    "shardd/log/offsets_table.py": {
        **dict.fromkeys(("PLACES_MAX", "BYTES_MAX"), READER),
        **dict.fromkeys(("_SEQUENCE_MAX", "_U32_MAX"), RANGE),
    },
    "shardd/log/record_format.py": dict.fromkeys(
        ("_HEADERS_BYTES_MAX", "_PAYLOAD_BYTES_MAX", "RECORD_BYTES_MAX"), ONE_THING
    ),
    "shardd/log/segment_source.py": {"ATTEMPTS_MAX": WORK},
    "shardd/log/unproven_tail.py": {"BYTES_MAX": READER},
    "shardd/metadata/apply_users.py": {"REVOKED_MAX": "of one user alone, whose tokens end all together"},
    "shardd/metadata/births.py": {"_HIGH_MAX": RANGE},
    "shardd/metadata/compaction.py": dict.fromkeys(("RECORDS_MAX", "BYTES_MAX"), WORK),
    "shardd/metadata/deletions.py": {"DELETIONS_SENT_MAX": WORK},
    "shardd/metadata/group_shares.py": {"GROUPS_MAX": GROUPS},
    "shardd/metadata/liftbridge_state.py": {
        **dict.fromkeys(("NAME_BYTES_MAX", "SUBJECT_BYTES_MAX", "ID_BYTES_MAX"), ONE_THING),
        **dict.fromkeys(("GROUPS_SIZE_MAX", "USER_SIZE_MAX"), LIFTBRIDGE_GROUPS),
        **dict.fromkeys(("MEMBERS_MAX", "GROUP_SIZE_MAX"), LIFTBRIDGE_GROUP),
        "RUNS_MAX": "of one stream, by who may change it",
        "EVENTS_BYTES_MAX": "a list of the last events, which never refuses one",
    },
    "shardd/metadata/producers.py": {
        **dict.fromkeys(("PRODUCERS_MAX", "PRODUCERS_OF_USER_MAX"), PRODUCERS),
        "EPOCHS_MAX": "of one producer, whose user begins another one",
    },
    "shardd/metadata/records.py": dict.fromkeys(("PAYLOAD_BYTES_MAX", "RECORD_BYTES_MAX"), ONE_THING),
    "shardd/metadata/snapshot_image.py": {"INDEX_MAX": RANGE},
    "shardd/metadata/validate.py": {
        **dict.fromkeys(("STREAMS_MAX", "TOPICS_MAX", "PARTITIONS_MAX", "SLOTS_MAX"), CREATED),
        "CHOSEN_GROUPS_MAX": "which ids may be chosen; any other id is given without it",
    },
    "shardd/metadata/validate_liftbridge.py": {
        "SERVER_ID_BYTES_MAX": ONE_THING,
        "ATTRIBUTES_MAX": ONE_THING,
    },
    "shardd/metadata/validate_users.py": {"USERS_MAX": CREATED},
    "shardd/metadata/writer.py": {"SUBMISSIONS_MAX": WORK},
}


def bounds_of(path: str, text: str) -> set[str]:
    """Names of the bounds in a file that stores something."""
    if not path.startswith(STORES) and not WRITES.search(text):
        return set()
    return {python or c for python, c in BOUND.findall(text)}


def found() -> dict[str, set[str]]:
    paths = [*(ROOT / "shardd").rglob("*.py"), *(ROOT / "native" / "src").rglob("*.[ch]")]
    each = {str(path.relative_to(ROOT)): path for path in paths}
    return {name: bounds for name, path in each.items() if (bounds := bounds_of(name, path.read_text()))}


def test_every_bound_of_a_stored_thing_is_listed() -> None:
    there = {(path, name) for path, names in found().items() for name in names}
    listed = {(path, name) for path, names in BOUNDS.items() for name in names}
    unlisted, gone = sorted(there - listed), sorted(listed - there)
    assert not unlisted, f"say in BOUNDS who owns these, what the share is and when they end, or why not: {unlisted}"
    assert not gone, f"these are listed, but there are no such bounds: {gone}"


def test_every_shared_bound_names_a_test_in_which_another_user_can_begin() -> None:
    shared = [bound for names in BOUNDS.values() for bound in names.values() if isinstance(bound, Shared)]
    assert shared
    for bound in shared:
        path, _, name = bound.test.partition("::")
        assert all(bound) and f"def {name}(" in (ROOT / path).read_text(), bound


def test_the_settings_that_shares_name_are_there() -> None:
    named = {
        setting
        for kept in BOUNDS.values()
        for shared in kept.values()
        if isinstance(shared, Shared)
        for setting in re.findall(r"\b[a-z]+(?:[._][a-z]+)+\b", f"{shared.share} {shared.end}")
    }
    assert "offsets.expiry" in named and named <= {key.path for key in KEYS}


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("shardd/metadata/new.py", "NOTES_MAX: Final = 7\n", {"NOTES_MAX"}),
        ("shardd/doors/new.py", "NOTES_MAX = 7\nlog = InternalLog(door)\n", {"NOTES_MAX"}),
        ("native/src/log/new.h", "#define NOTES_MAX 7u\n", {"NOTES_MAX"}),
        ("shardd/doors/new.py", "NOTES_MAX = 7\n", set()),
    ],
)
def test_a_new_bound_is_found(path: str, text: str, names: set[str]) -> None:
    assert bounds_of(path, text) == names
