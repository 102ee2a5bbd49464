"""Everything that is stored and grows has a bound with an owner, a share and an end, or says why not: fields of the
metadata, files of the data directory (docs/files.md), and settings that bound something. test_stored_bounds.py has the
bounds; a stored thing without a bound is found here."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import pytest
from immutables import Map

from shardd.config.keys import KEYS
from shardd.metadata.state import State
from tests.support.source_constants import ROOT
from tests.unit.test_stored_bounds import BOUNDS, Shared


class By(NamedTuple):
    """Names of constants in BOUNDS, or paths of settings, that bound it."""

    bounds: tuple[str, ...]


def by(*bounds: str) -> By:
    return By(bounds)


INDEX: Final = "finds the same things by another key"
FREE: Final = "ids that were taken once: as many as there were things at a time"
ONE_REQUEST: Final = "as long as one request makes it, which changes one thing"
SERVER: Final = "one of a server"
MESSAGES: Final = "messages, or made of them: they are kept as topics say, by rights of their own"
FAULTS: Final = "made by faults of the device or of a disk that was copied, which no user makes"
IMPORT: Final = "made by an import, which the operator starts"
ONE_OF_PARTITION: Final = "one of each partition"

FIELDS: Final[dict[str, By | str]] = {
    "State.streams": by("STREAMS_MAX"),
    "State.stream_ids": INDEX,
    "State.free_stream_ids": FREE,
    "State.users": by("USERS_MAX"),
    "State.user_ids": INDEX,
    "State.free_user_ids": FREE,
    "State.token_owners": INDEX,
    "State.producer_owners": INDEX,
    "State.free_slots": FREE,
    "Stream.topics": by("TOPICS_MAX"),
    "Stream.topic_ids": INDEX,
    "Stream.free_topic_ids": FREE,
    "Topic.partitions": by("PARTITIONS_MAX", "SLOTS_MAX"),
    "Topic.groups": by("GROUPS_MAX"),
    "Topic.group_ids": INDEX,
    "Topic.free_group_ids": FREE,
    "Topic.settings": "one value for each setting that there is",
    "User.tokens": by("personal_access_token.max_tokens_per_user"),
    "User.revoked": by("REVOKED_MAX"),
    "User.producers": by("PRODUCERS_OF_USER_MAX", "PRODUCERS_MAX"),
    "Permissions.streams": ONE_REQUEST,
    "StreamPermissions.topics": ONE_REQUEST,
    "GroupShares.of": "a count for each user",
    "Liftbridge.names": by("STREAMS_MAX"),
    "Liftbridge.groups": by("GROUPS_SIZE_MAX", "USER_SIZE_MAX"),
    "Liftbridge.groups_of": INDEX,
    "Liftbridge.charged": "a count for each user",
    "Liftbridge.events": by("EVENTS_BYTES_MAX"),
    "LiftbridgeStream.settings": by("ATTRIBUTES_MAX"),
    "LiftbridgeStream.paused": by("RUNS_MAX"),
    "LiftbridgeStream.readonly": by("RUNS_MAX"),
    "LiftbridgeGroup.members": by("MEMBERS_MAX", "GROUP_SIZE_MAX"),
    "LiftbridgeGroup.streams": by("GROUP_SIZE_MAX"),
    "LiftbridgeGroup.loads": INDEX,
    "LiftbridgeGroup.charges": INDEX,
    "SharedStream.shares": by("GROUP_SIZE_MAX"),
    "Activity.partitions": by("EVENTS_BYTES_MAX"),
    "Activity.names": by("EVENTS_BYTES_MAX"),
}

FILES: Final[dict[str, By | str]] = {
    **dict.fromkeys(
        (
            ".lock",
            "info.json",
            "state.reserve",
            "access.key",
            "producers.boot",
            "retention.clock",
            "runtime/current_config.toml",
            "runtime/liftbridge.nats-password",
        ),
        SERVER,
    ),
    **dict.fromkeys(("state.messages", "state.snapshot"), "the fields of the metadata, above"),
    **dict.fromkeys(
        ("state.messages.torn[.n]", "P/<start>.torn[.n]", "P/producers.unreadable", "P.unmarked[.n]/<name>"), FAULTS
    ),
    "trash/<name>": by("system.trash.names_max"),
    **dict.fromkeys(
        (
            "archive/incoming/<name>",
            "E/manifest.json",
            "E/ACK",
            "E/incarnation",
            "E/imported",
            "E/<start>.log",
            "E/<start>.blocks",
            "E/<start>.index",
            "E/<start>.manifest",
        ),
        by("system.archive.spool_max"),
    ),
    **dict.fromkeys(("P/incarnation", "P/imported"), ONE_OF_PARTITION),
    **dict.fromkeys(("P/<start>.log", "P/<start>.blocks", "P/<start>.index", "P/<start>.manifest"), MESSAGES),
    "P/consumer-offsets": by("OFFSETS_PLACES_MAX", "system.partition.consumer_offsets_max"),
    "P/producers": by("PRODUCERS_OF_PARTITION_MAX", "PRODUCERS_FILE_BYTES_MAX"),
    **dict.fromkeys(
        ("P/offsets/<kind>/<id>", "P/offsets.imported/<name>", "state/<name>", "streams/liftbridge.import/<name>"),
        IMPORT,
    ),
    ".sockets/<number>": "one of each listener, until it is open",
    "<any>.tmp": "one of each file that is being written",
}

SHARES: Final[dict[str, Shared]] = {
    "personal_access_token.max_tokens_per_user": Shared(
        "personal access tokens",
        "the user",
        "of one user alone",
        "their expiry: a new token removes the expired ones; or with the account",
        "tests/unit/test_services_accounts.py::test_expired_tokens_do_not_count_against_the_limit",
    ),
    "system.partition.consumer_offsets_max": next(
        bound
        for bound in BOUNDS["native/src/log/offsets_table.h"].values()
        if isinstance(bound, Shared)  # as OFFSETS_PLACES_MAX
    ),
    "system.trash.names_max": Shared(
        "names in the trash",
        "deletions, by rights of their own",
        "users wait in turns",
        "the emptier removes them",
        "tests/unit/test_deletion_gate.py::test_users_take_turns",
    ),
    "system.archive.spool_max": Shared(
        "bytes of the spool",
        "topics that are archived",
        "entries of best_effort go, the oldest first",
        "the archiver takes them",
        "tests/server/test_archive.py::test_above_its_bound_best_effort_goes_and_required_stays_with_an_alarm",
    ),
}
"""Of settings that bound a stored thing."""
NOT_STORED: Final = (
    ("websocket.max_", "http.max_", "quic.max_", "liftbridge.max_", "liftbridge.nats_server.max_"),  # of one request
    ("server.connections_", "server.login_attempts_max", "server.waiting_polls_", "metrics."),  # connections, answers
    ("system.retention.", "system.watchdog."),  # times
    ("system.message_deduplication.max_entries", "system.topic.max_size"),  # what a topic keeps, by rights of its own
)


def growing_fields(start: type) -> Iterator[str]:
    """`Class.field` for all fields with containers, of a struct and of all that it may hold."""
    seen = {start}
    left = [start]
    while left:
        struct = left.pop()
        for name, said in typing.get_type_hints(struct).items():
            if grows(said):
                yield f"{struct.__name__}.{name}"
            for held in structs_of(said):
                if held not in seen:
                    seen.add(held)
                    left.append(held)


def grows(said: object) -> bool:
    held = typing.get_args(said)
    is_container = typing.get_origin(said) in (Map, dict, list, set, frozenset, Iterable)
    return is_container or (typing.get_origin(said) is tuple and ... in held) or any(map(grows, held))


def structs_of(said: object) -> Iterator[type]:
    if isinstance(said, type) and issubclass(said, msgspec.Struct):
        yield said
    for held in typing.get_args(said):
        yield from structs_of(held)


def files_of(page: str) -> list[str]:
    """What the first cells of the table of files name."""
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def bounding_settings(paths: Iterable[str]) -> list[str]:
    passed = tuple(prefix for group in NOT_STORED for prefix in group)
    return [path for path in paths if re.search(r"(?:_|\b)max(?:_|\b)|_limit\b", path) and not path.startswith(passed)]


def test_growing_fields_of_the_metadata_have_a_bound_or_a_reason() -> None:
    assert sorted(growing_fields(State)) == sorted(FIELDS)


def test_files_of_the_data_directory_have_a_bound_or_a_reason() -> None:
    assert sorted(files_of((ROOT / "docs" / "files.md").read_text())) == sorted(FILES)


def test_settings_that_bound_what_is_stored_have_owner_share_and_end() -> None:
    assert sorted(bounding_settings(key.path for key in KEYS)) == sorted(SHARES)
    for shared in SHARES.values():
        path, _, name = shared.test.partition("::")
        assert all(shared) and f"def {name}(" in (ROOT / path).read_text(), shared


def test_bounds_of_stored_kinds_are_there() -> None:
    there = {name for names in BOUNDS.values() for name in names} | set(SHARES)
    for kind, said in [*FIELDS.items(), *FILES.items()]:
        assert not isinstance(said, By) or set(said.bounds) <= there, kind


def test_shared_bounds_are_those_of_a_stored_kind() -> None:
    """Cursors are messages of a topic of the server's own."""
    bounding = {name for said in [*FIELDS.values(), *FILES.values()] if isinstance(said, By) for name in said.bounds}
    shared = {name for names in BOUNDS.values() for name, bound in names.items() if isinstance(bound, Shared)}
    assert shared - bounding == {"CURSORS_MAX", "PRODUCERS_OF_WORKER_MAX"}


class _Note(msgspec.Struct):
    text: str
    readers: tuple[int, ...]


class _Notes(msgspec.Struct):
    count: int
    pair: tuple[int, int]
    kept: Map[int, _Note]
    last: _Note | None


def test_new_field_that_grows_is_found() -> None:
    assert sorted(growing_fields(_Notes)) == ["_Note.readers", "_Notes.kept"]


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("| `P/notes` | the engine | all | small | - | served | - |", ["P/notes"]),
        ("| `P/notes`, `P/others` | the engine | `P/third` | small | - | served | - |", ["P/notes", "P/others"]),
        ("a sentence with `P/notes`", []),
    ],
)
def test_new_file_is_found(row: str, names: list[str]) -> None:
    assert files_of(row) == names


def test_new_setting_that_bounds_something_is_found() -> None:
    paths = ["system.notes_max", "notes.max_per_user", "system.maxim", "http.max_request_size", "notes.entry_limit"]
    assert bounding_settings(paths) == ["system.notes_max", "notes.max_per_user", "notes.entry_limit"]
