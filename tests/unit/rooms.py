"""Places and bytes that a crowd shares by `Room`, `SharedRoom` or `FairTurns` (shardd/runtime/), as the sources make
them, and what each is for. The table *Rooms* of docs/limits.md is made of this (limits_tables.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.support.source_constants import ROOT

MAKERS: Final = ("Room", "SharedRoom", "FairTurns")
# A class or function of a file that makes a room of what it is given, and the place of that among its arguments.
WRAPPERS: Final = {"shardd/doors/liftbridge/calls.py": ("Crowd", 1), "shardd/doors/quic/listener.py": ("_room", 0)}
GIVES_WAY: Final = "the newest of the user with most gives way to a user with less"
ADDRESS_GIVES_WAY: Final = "the newest of the address with most gives way to an address with less"
WAITS: Final = "users wait, in turns"
STAYS: Final = "refused"
ADDRESS: Final = "one address of a user"
USER: Final = "one user"


class Made(NamedTuple):
    """A call that makes a room: `all` and `part` are expressions of the file, "" where the maker needs none."""

    file: str
    all: str
    part: str = ""


class Shared(NamedTuple):
    """`whose`: what has the part. `said`, `said_share`: in place of expressions that need a running server."""

    what: str
    whose: str
    full: str
    said: str = ""
    said_share: str = ""


_CALLS: Final = "shardd/doors/liftbridge/calls.py"
_QUIC: Final = "shardd/doors/quic/listener.py"
_PLACES: Final = "shardd/dispatch/door/places.py"
_NATS: Final = "shardd/doors/liftbridge/nats/server.py"
_POLLS: Final = "shardd/doors/http/polls.py"
_BODIES: Final = "shardd/doors/http/bodies.py"
_PUBLISHING: Final = "shardd/doors/liftbridge/publishing.py"
_PARTITIONS: Final = "shardd/doors/liftbridge/partitions.py"
_TURN: Final = Shared("", "", WAITS)

ROOMS: Final[dict[Made, Shared]] = {
    Made(_POLLS, "POLLS_BYTES_MAX", "POLLS_OF_ADDRESS_BYTES_MAX"): Shared(
        "bytes of answers to polls over HTTP", ADDRESS, f"{WAITS}; {GIVES_WAY}"
    ),
    Made(_POLLS, "STORING_POLLS_MAX"): Shared(
        "polls over HTTP that store offsets, with a worker", "one user, as much as is left", WAITS
    ),
    Made(_POLLS, "STREAMS_MAX", "STREAMS_OF_ADDRESS_MAX"): Shared("streams of events over HTTP", ADDRESS, GIVES_WAY),
    Made(_POLLS, "SNAPSHOTS_MAX"): Shared("snapshots over HTTP, with a worker", "one user, as much as is left", WAITS),
    Made("shardd/doors/unread.py", "ANSWERS_BYTES_MAX", "ANSWERS_OF_ADDRESS_BYTES_MAX"): Shared(
        "bytes of other answers over HTTP, HTTPS and metrics", "one address of a user, or of strangers", GIVES_WAY
    ),
    Made(_BODIES, "ALL_BODIES_BYTES_MAX", "ALL_BODIES_BYTES_MAX // ADDRESS_SHARE"): Shared(
        "bytes of bodies over HTTP", ADDRESS, GIVES_WAY
    ),
    Made(_QUIC, "ALL_REQUESTS_BYTES_MAX", "ALL_REQUESTS_BYTES_MAX // ADDRESS_SHARE"): Shared(
        "bytes of long requests over QUIC", ADDRESS, f"{WAITS}; {GIVES_WAY}"
    ),
    Made(_QUIC, "ALL_POLLS_BYTES_MAX", "ALL_POLLS_BYTES_MAX // ADDRESS_SHARE"): Shared(
        "bytes of answers to polls over QUIC", ADDRESS, f"{WAITS}; {GIVES_WAY}"
    ),
    Made(_QUIC, "STORING_POLLS_MAX"): Shared(
        "polls over QUIC that store offsets, with a worker", "one user, as much as is left", WAITS
    ),
    Made(_QUIC, "ALL_ANSWERS_BYTES_MAX", "ALL_ANSWERS_BYTES_MAX // ADDRESS_SHARE"): Shared(
        "bytes of other answers over QUIC", ADDRESS, f"{WAITS}; {GIVES_WAY}"
    ),
    Made(_QUIC, "SNAPSHOTS_MAX"): Shared("snapshots over QUIC, with a worker", "one user, as much as is left", WAITS),
    Made(_CALLS, "LOGINS_MAX", "LOGINS_OF_ADDRESS_MAX"): Shared(
        "calls of gRPC that wait for their login", "one address", ADDRESS_GIVES_WAY
    ),
    Made(_CALLS, "CALLS_MAX", "CALLS_OF_ADDRESS_MAX"): Shared("calls of gRPC that answer once", ADDRESS, GIVES_WAY),
    Made(_CALLS, "SUBSCRIPTIONS_MAX", "SUBSCRIPTIONS_OF_ADDRESS_MAX"): Shared(
        "subscriptions over gRPC", ADDRESS, GIVES_WAY
    ),
    Made(_CALLS, "SESSIONS_MAX", "SESSIONS_OF_ADDRESS_MAX"): Shared("sessions of PublishAsync", ADDRESS, GIVES_WAY),
    Made(_CALLS, "PROBES_MAX", "PROBES_OF_ADDRESS_MAX"): Shared(
        "looks at health and reflection over gRPC", "one address", ADDRESS_GIVES_WAY
    ),
    Made(_CALLS, "WATCHES_MAX", "WATCHES_OF_ADDRESS_MAX"): Shared(
        "watches of health over gRPC", "one address", ADDRESS_GIVES_WAY
    ),
    Made(_CALLS, "READS_MAX", "READS_MAX"): Shared("requests of gRPC that come in", "", f"{WAITS}; {GIVES_WAY}"),
    Made(_CALLS, "PROBE_READS_MAX", "PROBE_READS_MAX"): Shared(
        "requests for health that come in", "", f"{WAITS}; {GIVES_WAY}"
    ),
    Made(_CALLS, "ANSWERS_BYTES_MAX", "ANSWER_BYTES_MAX"): Shared(
        "bytes of answers of gRPC without a bound of their own", ADDRESS, GIVES_WAY
    ),
    Made(_CALLS, "LARGE_BYTES_MAX", "LARGE_OF_ADDRESS_BYTES_MAX"): Shared(
        "bytes of large messages of subscriptions", ADDRESS, f"{WAITS}; {GIVES_WAY}"
    ),
    Made(_NATS, "UNREAD_BYTES_MAX", "UNREAD_BYTES_MAX // USER_SHARE"): Shared(
        "bytes that clients of NATS have sent, and that have no turn yet, beyond 64 KiB of each connection",
        f"{USER}, and not more than is left",
        "not read on",
    ),
    Made(_NATS, "UNSENT_BYTES_MAX", "UNSENT_BYTES_MAX // USER_SHARE"): Shared(
        "bytes that clients of NATS do not take, beyond 64 KiB of each connection",
        f"{USER}, and not more than is left",
        "the connection is closed",
    ),
    Made(_PUBLISHING, "PENDING_BYTES_MAX"): Shared(
        "bytes of messages of Liftbridge that are not stored yet, beyond 2 KiB of each client",
        "one user, as much as is left; one address of it, half of that",
        "they wait, users in turns, then addresses, then clients",
    ),
    Made(_PUBLISHING, "UNDER_WAY_BYTES_MAX"): Shared(
        "bytes of such messages that workers have, beyond 2 KiB of each client",
        "one user, as much as is left; one address of it, half of that",
        "they wait, users in turns, then addresses, then clients",
    ),
    Made("shardd/doors/liftbridge/late_refusals.py", "LATE_MAX"): Shared(
        "negative acks over NATS that wait for a worker",
        "one user, as much as is left; one address of it, half of that",
        "not sent",
    ),
    Made("shardd/doors/liftbridge/nats/audience.py", "SUBSCRIPTIONS_MAX"): Shared(
        "subscriptions of clients of NATS", "one user, as much as is left", "a connection that wants more is closed"
    ),
    Made(_PARTITIONS, "POLLS_MAX"): Shared("polls of the door for Liftbridge", "one user, as much as is left", WAITS),
    Made(_PARTITIONS, "BOUNDS_MAX"): Shared(
        "questions of the door for Liftbridge about bounds", "one user, as much as is left", WAITS
    ),
    Made("shardd/doors/liftbridge/metadata_rpcs.py", "ANSWERS_MAX"): Shared(
        "answers of FetchMetadata that are put together", "one user, as much as is left", WAITS
    ),
    Made(_PLACES, "ASIDE_BYTES_MAX", "ASIDE_BYTES_MAX"): Shared(
        "bytes of requests of a door that wait for a turn at a worker", "", GIVES_WAY
    ),
    Made(_PLACES, "BEGUN_BYTES_MAX", "BEGUN_OF_USER_BYTES_MAX"): Shared(
        "bytes of changes of a door that wait for the device", f"{USER}, and not more than is left", STAYS
    ),
    Made(_PLACES, "bytes_max", "self.of_user_bytes_max"): Shared(
        "bytes of sends and stores of all doors that the engine of a worker has",
        f"{USER}, and not more than is left",
        f"{WAITS}, aside",
        "as `HANDED_BYTES_MAX` says",
        "half",
    ),
    Made("shardd/runtime/bus_link.py", "REQUESTS_IN_FLIGHT_MAX"): Shared(
        "requests of one method to one shard", "one user, as much as is left; one address of it, half of that", WAITS
    ),
    Made("shardd/service/waiting.py", "WAITS_MAX"): Shared(
        "waits for messages of clients of doors at a worker", "one user, as much as is left", STAYS
    ),
    Made("shardd/service/lease_table.py", "count_max"): Shared(
        "leases of files: of a shard, and of each partition",
        "one user, as much as is left",
        STAYS,
        "as `LEASES_OF_SHARD_MAX` and `LEASES_OF_PARTITION_MAX` say",
    ),
    Made("shardd/service/groups.py", "CHANGES_MAX"): Shared(
        "joins and leaves of consumer groups of a worker at shard 0", "one user, as much as is left", WAITS
    ),
    Made("shardd/service/extensions.py", "METRICS_MAX"): Shared(
        "GET_METRICS of a worker at all shards", "one user, as much as is left", WAITS
    ),
    Made("shardd/service/system.py", "QUESTIONS_MAX"): Shared(
        "GET_CLIENT, GET_CLIENTS and GET_STATS of a worker at all shards", "one user, as much as is left", WAITS
    ),
    Made("shardd/runtime/slices.py", "1"): Shared(
        "slices of long answers in a turn of a worker's loop", "", "they wait, in order"
    ),
    Made("shardd/metadata/replica.py", "DELETIONS_SENT_MAX"): _TURN._replace(
        what="deletions of a shard on their way to shard 0"
    ),
    Made("shardd/maintenance/deletion_gate.py", "1"): _TURN._replace(what="deletions at a full trash"),
    Made("shardd/service/bounds.py", "1"): _TURN._replace(what="listings of directories for bounds"),
    Made("shardd/service/snapshot.py", "1"): _TURN._replace(what="snapshots of a worker"),
    Made("shardd/security/login_turns.py", "places"): Shared(
        "passwords that are verified", "", "addresses wait, in turns, and within them accounts", "`_PASSWORD_THREADS`"
    ),
}


def made_in(file: str, text: str) -> Iterator[Made]:
    """Every room that the text of a file makes."""
    name, place = WRAPPERS.get(file, ("", 0))
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        said = [ast.unparse(each) for each in node.args]
        if node.func.id in MAKERS and not (name and said[0].islower()):  # or the wrapper's own
            yield Made(file, *said[:2])
        elif name and node.func.id == name:
            parts = said[place : place + 2]
            yield Made(file, parts[0], parts[1] if place else f"{parts[0]} // ADDRESS_SHARE")


def all_made() -> list[Made]:
    return [
        made
        for path in sorted((ROOT / "shardd").rglob("*.py"))
        for made in made_in(str(path.relative_to(ROOT)), path.read_text())
    ]
