"""How much the processes of the server may grow beside a crowd at a door, as sums of what docs/limits.md bounds. The
table *Memory beside a crowd* there is made of this (tests/unit/limits_tables.py)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.support.source_constants import Sources

CROWD: Final = 200
"""Connections of an attacker."""
QUIC_SHARE: Final = 5
"""Of QUIC this part of them: such a client costs its own process as much as several of TCP."""


class Part(NamedTuple):
    """`expression`: of constants that the file says."""

    what: str
    file: str
    expression: str


_PLACES: Final = "shardd/dispatch/door/places.py"
_HTTP: Final = "shardd/doors/http"
_LIFTBRIDGE: Final = "shardd/doors/liftbridge"
_QUIC: Final = "shardd/doors/quic/listener.py"
_AT_A_WORKER: Final = Part("requests and answers at a worker", _PLACES, "UNDER_WAY_BYTES_MAX")
_UNREAD: Final = Part("answers that are not read", "shardd/doors/unread.py", "ANSWERS_BYTES_MAX")
_OF_HTTP: Final = (
    Part("answers to polls", f"{_HTTP}/polls.py", "POLLS_BYTES_MAX"),
    _UNREAD._replace(what="other answers"),
    Part("bodies", f"{_HTTP}/bodies.py", "ALL_BODIES_BYTES_MAX"),
    _AT_A_WORKER,
)
_OF_THE_ENGINE: Final = (
    Part(
        "two windows of polls for each connection, in blocks of twice their size",
        "native/src/core/reads.h",
        f"{CROWD} * 2 * 2 * POLL_WINDOW_BYTES",
    ),
    Part("receive buffers of two workers", "native/src/io/io.h", "2 * RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE"),
    Part(
        "unfinished frames of one address without and with a login, at two workers",
        "native/src/net/shares.c",
        "2 * (2 * PARTIAL_BUDGET_MIN + 2 * PARTIAL_BUDGET_MIN // ANONYMOUS_PART)",
    ),
)
OTHERS: Final = "tcp, tls, unix, websocket, wss, iggy09"
SUMS: Final[dict[str, tuple[Part, ...]]] = {
    "http, https": _OF_HTTP,
    "grpc": (
        Part("large messages of subscriptions", f"{_LIFTBRIDGE}/calls.py", "LARGE_BYTES_MAX"),
        Part("other answers", f"{_LIFTBRIDGE}/calls.py", "ANSWERS_BYTES_MAX"),
        _AT_A_WORKER,
    ),
    "nats": (
        Part("what one user has sent", f"{_LIFTBRIDGE}/nats/server.py", "UNREAD_BYTES_MAX // USER_SHARE"),
        Part("what one user does not take", f"{_LIFTBRIDGE}/nats/server.py", "UNSENT_BYTES_MAX // USER_SHARE"),
        Part("messages that are not stored", f"{_LIFTBRIDGE}/publishing.py", "PENDING_BYTES_MAX"),
        Part("batches at workers", f"{_LIFTBRIDGE}/publishing.py", "UNDER_WAY_BYTES_MAX"),
    ),
    "quic": (
        Part("answers to polls of one address", _QUIC, "ALL_POLLS_BYTES_MAX // ADDRESS_SHARE"),
        Part("long requests of one address", _QUIC, "ALL_REQUESTS_BYTES_MAX // ADDRESS_SHARE"),
        Part("other answers of one address", _QUIC, "ALL_ANSWERS_BYTES_MAX // ADDRESS_SHARE"),
        _AT_A_WORKER,
    ),
    "metrics": (_UNREAD,),
    OTHERS: _OF_THE_ENGINE,
}
LEAST_BYTES: Final = 160 << 20
"""The bound where a sum is less: connections, TLS and what Python keeps are beside it."""


def sum_of(doors: str, sources: Sources) -> int:
    return sum(int(sources.of_expression(part.file, part.expression)) for part in SUMS[doors])


def process_bytes_max(door: str) -> int:
    """Of all processes, beside a crowd at this door."""
    [doors] = [doors for doors in SUMS if door in doors.split(", ")]
    return max(LEAST_BYTES, sum_of(doors, Sources()))
