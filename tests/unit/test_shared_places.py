"""Every bound of the doors, and of workers for doors, is that of a room (tests/unit/rooms.py), or says why it is not: a
new `*_MAX`, `*_SHARE` or `*_PART` in one of their files fails until it is listed."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest

from tests.support.source_constants import ROOT
from tests.unit.rooms import ROOMS, WRAPPERS
from tests.unit.test_stored_bounds import BOUNDS as STORED

BOUND: Final = re.compile(r"^(_?[A-Z][A-Z0-9_]*_(?:MAX|SHARE|PART))(?:: [^=]+)? = ", re.MULTILINE)
FILES: Final = ("shardd/doors/", "shardd/dispatch/door/", "shardd/service/waiting.py", "shardd/service/given_up.py")

ONE_THING: Final = "the size of one thing, which takes no place of another one"
OF_ONE: Final = "what one connection, session, subscription or user has alone"
TURN: Final = "work in a turn of the loop, in which all have their turns"
REMEMBERED: Final = "what is remembered: the oldest goes, and is looked up or asked for again"
RANGE: Final = "what a field or a file of the operator can say"
PART: Final = "a part of a bound beside it, or a pace"

# What counts by itself: such a class says in its docstring, or beside the constant, why it is no room.
ACCEPTED: Final = "connections are counted where they are accepted, by address: a user is known later"
LIBRARY: Final = "the library of gRPC accepts and keeps its calls itself: what it has is looked at, and ended"
STRANGERS: Final = "of those without a name the oldest ends, of the address with most: a newcomer is never refused"
AFTERWARDS: Final = "counted by shard, after the fact: what has been given up is not refused, the next call is"
ONE_DOOR: Final = "of one connection of a door: what stands there is read on in turns of its users"

BOUNDS: Final[dict[str, dict[str, str]]] = {
    "shardd/doors/asgi.py": {
        **dict.fromkeys(("PIPELINED_MAX", "UNTAKEN_BODY_BYTES_MAX", "UNWRITTEN_BYTES_MAX"), OF_ONE),
        "HEAD_FIELDS_MAX": ONE_THING,
    },
    "shardd/doors/asgi_crowd.py": dict.fromkeys(("INTRODUCTIONS_MAX", "INTRODUCTIONS_SHARE"), ACCEPTED),
    "shardd/doors/forwarded.py": {"HOPS_MAX": ONE_THING, "ADDRESS_CHARS_MAX": ONE_THING, "PORT_MAX": RANGE},
    "shardd/doors/held_clients.py": {"SHOWN_CHARACTERS_MAX": ONE_THING},
    "shardd/doors/hosts.py": {"_SHOWN_CHARACTERS_MAX": ONE_THING},
    "shardd/doors/introductions.py": {"HEADER_BYTES_MAX": ONE_THING},
    "shardd/doors/openings.py": {"WIRE_BYTES_MAX": OF_ONE},
    "shardd/doors/unread.py": {"LOOKS_MAX": TURN},
    "shardd/doors/taking.py": {"UNSENT_BYTES_MAX": OF_ONE},
    "shardd/doors/http/access_log.py": {"_PATH_CHARACTERS_MAX": ONE_THING},
    "shardd/doors/http/bodies.py": {"DROPPED_BYTES_MAX": ONE_THING},
    "shardd/doors/http/endpoint.py": {
        **dict.fromkeys(("_NAME_BYTES_MAX", "_QUERY_FIELDS_MAX", "PASSWORD_BODY_BYTES_MAX"), ONE_THING),
        "_ID_MAX": RANGE,
    },
    "shardd/doors/http/event_routes.py": {"_OFFSET_MAX": RANGE},
    "shardd/doors/http/message_shapes.py": {"_PART_BYTES_MAX": ONE_THING, "_ID_DIGITS_MAX": ONE_THING},
    "shardd/doors/liftbridge/arrivals.py": {"REMEMBERED_MAX": REMEMBERED},
    "shardd/doors/liftbridge/call_lines.py": dict.fromkeys(
        ("PENDING_CALLS_MAX", "PENDING_CALLS_ALWAYS_MAX", "LOUD_CALLS_MAX", "HOSTS_MAX"), LIBRARY
    ),
    "shardd/doors/liftbridge/connection_shares.py": {
        **dict.fromkeys(("LOOK_SHARE", "ENDING_SHARE"), PART),
        **dict.fromkeys(("BEFORE_CALL_BYTES_MAX", "REFUSED_MAX", "STRANGER_BYTES_MAX"), OF_ONE),
        **dict.fromkeys(("STRANGERS_SHARE", "SHUT_OUT_MAX"), LIBRARY),
    },
    "shardd/doors/liftbridge/cursor_rpcs.py": {"_ALLOWED_MAX": REMEMBERED},
    "shardd/doors/liftbridge/endpoint.py": {
        **dict.fromkeys(("REQUEST_BYTES_MAX", "METADATA_BYTES_MAX", "METADATA_ENTRIES_MAX"), ONE_THING),
        "STREAMS_OF_CONNECTION_MAX": OF_ONE,
    },
    "shardd/doors/liftbridge/fan_out.py": {"TARGETS_AT_ONCE_MAX": TURN},
    "shardd/doors/liftbridge/followers.py": {"AT_WORKERS_MAX": "beyond it a subscription looks now and then instead"},
    "shardd/doors/liftbridge/group_rpcs.py": {"REPORTED_GROUPS_MAX": REMEMBERED},
    "shardd/doors/liftbridge/ingest.py": {"CORRELATION_BYTES_MAX": ONE_THING},
    "shardd/doors/liftbridge/internal.py": {"_PAYLOAD_BYTES_MAX": ONE_THING},
    "shardd/doors/liftbridge/losses.py": {"_SUBJECT_CHARACTERS_MAX": ONE_THING},
    "shardd/doors/liftbridge/metadata_rpcs.py": {"NAMES_OF_REQUEST_MAX": ONE_THING},
    "shardd/doors/liftbridge/nats/audience.py": {
        **dict.fromkeys(("SUBSCRIPTIONS_PER_CONNECTION_MAX", "_REMEMBERED_MATCHES_MAX"), OF_ONE),
        "SUBSCRIPTIONS_PER_USER_MAX": PART,
        **dict.fromkeys(("RIGHTS_MAX", "_REMEMBERED_SUBJECTS_MAX"), REMEMBERED),
        **dict.fromkeys(("HELD_MESSAGES_MAX", "HELD_BYTES_MAX", "HELD_STREAMS_MAX"), OF_ONE),
        **dict.fromkeys(("PASSED_OVER_AT_ONCE_MAX", "HEARINGS_AT_ONCE_MAX", "LOOKS_AT_ONCE_MAX"), TURN),
    },
    "shardd/doors/liftbridge/nats/client.py": {
        "PINGS_MAX": OF_ONE,
        "UNSENT_BYTES_MAX": OF_ONE,
        "SECRET_BYTES_MAX": ONE_THING,
    },
    "shardd/doors/liftbridge/nats/connection.py": {
        **dict.fromkeys(("PINGS_MAX", "UNREAD_BYTES_MAX"), OF_ONE),
        "TURN_REQUESTS_MAX": TURN,
    },
    "shardd/doors/liftbridge/nats/link.py": {"UNSENT_BYTES_MAX": OF_ONE},
    "shardd/doors/liftbridge/nats/outbox.py": {"UNSENT_BYTES_MAX": OF_ONE},
    "shardd/doors/liftbridge/nats/pool.py": {"USER_SHARE": PART},
    "shardd/doors/liftbridge/nats/server.py": {"STRANGERS_MAX": STRANGERS},
    "shardd/doors/liftbridge/nats/subscriptions.py": {
        "SUBSCRIPTIONS_MAX": "subscriptions of the server's own, for its streams",
        "APART_MAX": ONE_THING,
    },
    "shardd/doors/liftbridge/nats/tellings.py": dict.fromkeys(
        ("WAITING_MAX", "WAITING_BYTES_MAX"), "publishers wait while anything is here: it fills at their pace"
    ),
    "shardd/doors/liftbridge/options.py": {"ADDRESS_SHARE": ACCEPTED},
    "shardd/doors/liftbridge/publish_batches.py": {"BATCH_BYTES_MAX": ONE_THING},
    "shardd/doors/liftbridge/publish_rpcs.py": dict.fromkeys(("UNANSWERED_MAX", "UNANSWERED_BYTES_MAX"), OF_ONE),
    "shardd/doors/liftbridge/publishing.py": {
        "TURN_MESSAGES_MAX": TURN,
        **dict.fromkeys(("AHEAD_PART", "TURN_PART"), PART),
    },
    "shardd/doors/liftbridge/refusals.py": {"STORED_IN_MAX": REMEMBERED},
    "shardd/doors/liftbridge/registry.py": {"_FIND_SHARE": PART},
    "shardd/doors/liftbridge/router.py": {
        **dict.fromkeys(("REMEMBERED_SUBJECTS_MAX", "REMEMBERED_TARGETS_MAX"), REMEMBERED),
        **dict.fromkeys(("_REMEMBERED_CHARACTERS_MAX", "_PARTITION_DIGITS_MAX"), ONE_THING),
    },
    "shardd/doors/liftbridge/strangers.py": {
        **dict.fromkeys(("OF_CONNECTION_MAX", "GIVEN_UP_MAX"), OF_ONE),
        **dict.fromkeys(("OF_ADDRESS_MAX", "OF_ALL_MAX"), LIBRARY),
        "REMEMBERED_MAX": REMEMBERED,
    },
    "shardd/doors/liftbridge/subject_table.py": {"FEW_MAX": ONE_THING},
    "shardd/doors/metrics/main.py": {
        **dict.fromkeys(("CONNECTIONS_MAX", "CONNECTIONS_PER_ADDRESS_MAX"), ACCEPTED),
        "HEAD_BYTES_MAX": ONE_THING,
    },
    "shardd/doors/metrics/options.py": {"TOKEN_CHARACTERS_MAX": RANGE},
    "shardd/doors/quic/classic.py": dict.fromkeys(
        ("REQUEST_BYTES_MAX", "STRANGER_BYTES_MAX", "_PAYLOAD_BYTES_MAX"), ONE_THING
    ),
    "shardd/doors/quic/connection.py": {"REQUESTS_MAX": OF_ONE, "OWED_SHARE": PART},
    "shardd/doors/quic/flow.py": {"GAPS_LOOKED_AT_MAX": ONE_THING, "HANDSHAKE_GAPS_MAX": OF_ONE},
    "shardd/doors/quic/handshakes.py": {"WAITING_MAX": OF_ONE},
    "shardd/doors/quic/listener.py": {
        "UNSENT_BYTES_MAX": "datagrams: more are lost, as on any path, and sent again",
        **dict.fromkeys(("DATAGRAM_BYTES_MAX", "HANDSHAKE_DATAGRAM_BYTES_MAX"), ONE_THING),
    },
    "shardd/service/given_up.py": dict.fromkeys(("GIVEN_UP_MAX", "RECORDS_POOL_PART", "NEWCOMER_MAX"), AFTERWARDS),
    "shardd/dispatch/door/clients.py": {"_PORT_MAX": RANGE},
    "shardd/dispatch/door/commands.py": {"_REQUEST_BYTES_MAX": ONE_THING},
    "shardd/dispatch/door/endpoint.py": {"UNPROVEN_MAX": "connections of the same machine that prove nothing"},
    "shardd/dispatch/door/places.py": {
        **dict.fromkeys(("REQUESTS_MAX", "UNDER_WAY_BYTES_MAX"), ONE_DOOR),
        **dict.fromkeys(("HANDED_BYTES_MAX", "HANDED_POOL_PART", "HANDED_MAX"), "of `Handed`"),
        **dict.fromkeys(("HANDED_USER_SHARE", "HANDED_ONE_SHARE"), "of `Handed`"),
    },
}


def in_rooms() -> set[tuple[str, str]]:
    """Constants, with their files, of which a room is made."""
    return {
        (made.file, node.id)
        for made in ROOMS
        for said in (made.all, made.part)
        if said
        for node in ast.walk(ast.parse(said))
        if isinstance(node, ast.Name)
    }


def bounds_of(path: str, text: str) -> set[tuple[str, str]]:
    return {(path, name) for name in BOUND.findall(text)} if path.startswith(FILES) else set()


def test_bounds_of_doors_are_of_rooms_or_say_why_not() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "shardd").rglob("*.py")}
    there = {bound for path, text in texts.items() for bound in bounds_of(path, text)}
    stored = {(path, name) for path, names in STORED.items() for name in names}
    listed = {(path, name) for path, names in BOUNDS.items() for name in names}
    unlisted = sorted(there - in_rooms() - stored - listed)
    assert not unlisted, f"make rooms of these (shardd/runtime/crowds.py), or say in BOUNDS why not: {unlisted}"
    assert not listed - there, f"these are listed, but there are no such bounds: {sorted(listed - there)}"
    assert not listed & (in_rooms() | stored), "these need no reason"
    assert {file for file, _ in in_rooms()} >= set(WRAPPERS)


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("shardd/doors/http/new.py", "NOTES_MAX: Final = 7\n", {"NOTES_MAX"}),
        ("shardd/doors/new.py", "_USER_SHARE: Final[int] = 2\n", {"_USER_SHARE"}),
        ("shardd/dispatch/door/new.py", "POOL_PART = 8\n", {"POOL_PART"}),
        ("shardd/service/new.py", "NOTES_MAX = 7\n", set()),
        ("shardd/doors/new.py", "NOTES_S = 7\n", set()),
    ],
)
def test_new_bound_of_a_door_is_found(path: str, text: str, names: set[str]) -> None:
    assert {name for _, name in bounds_of(path, text)} == names
