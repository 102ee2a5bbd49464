"""What is in the matrix: (door x role x attack), one line each, and why a combination is not a line."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DOORS: Final = (
    "tcp", "tls", "websocket", "wss", "iggy09", "unix", "http", "https", "metrics", "quic", "grpc", "nats",
)  # fmt: skip
STRANGER, RIGHTLESS, READER = "stranger", "rightless", "reader"
ROLES: Final = (STRANGER, RIGHTLESS, READER)
SILENT, DRIPPING, UNREAD, PIPELINED = "silent", "dripping", "unread", "pipelined"
HALF_SENT, ONE_BYTE, HANDSHAKE, WRONG_PASSWORD = "half-sent", "one-byte", "handshake", "wrong-password"
ATTACKS: Final = (SILENT, DRIPPING, UNREAD, PIPELINED, HALF_SENT, ONE_BYTE, HANDSHAKE, WRONG_PASSWORD)
BEHAVED: Final = "behaved"  # the control: as many clients that ask and take their answers


@dataclass(frozen=True, slots=True, order=True)
class Line:
    door: str
    role: str
    attack: str

    def __str__(self) -> str:
        return f"{self.door}/{self.role}/{self.attack}"


_REASONS: Final = {
    "no login": "this door asks for no login: nobody is somebody there",
    "no password": "this door takes no password",
    "before": "a handshake comes before the login: it is that of a stranger",
    "at tcp": "the port and what comes first are those of the door tcp",
    "own": "the own password needs no right: as rightless",
    "login": "a password is shown with a login alone, which is a stranger's",
}


def reason_without(line: Line) -> str:
    """Why there is no such line; empty: there is one."""
    if line.door == "metrics" and line.role != STRANGER:
        return _REASONS["no login"]
    if line.door == "metrics" and line.attack == WRONG_PASSWORD:
        return _REASONS["no password"]
    if line.attack == HANDSHAKE and line.role != STRANGER:
        return _REASONS["before"]
    if line.attack == HANDSHAKE and line.door == "iggy09":
        return _REASONS["at tcp"]
    if line.attack == WRONG_PASSWORD and line.role != STRANGER and line.door in ("grpc", "nats"):
        return _REASONS["login"]
    if line.attack == WRONG_PASSWORD and line.role == READER:
        return _REASONS["own"]
    return ""


def combinations() -> Iterator[Line]:
    return (Line(door, role, attack) for door in DOORS for role in ROLES for attack in ATTACKS)


LINES: Final = tuple(line for line in combinations() if not reason_without(line))
WITHOUT: Final = {line: reason for line in combinations() if (reason := reason_without(line))}


def chosen(patterns: str) -> list[Line]:
    """`patterns`: with commas between them, as those of file names; ValueError for one that fits no line."""
    found: list[Line] = []
    for pattern in filter(None, (each.strip() for each in patterns.split(","))):
        fitting = [line for line in LINES if fnmatch.fnmatchcase(str(line), pattern)]
        if not fitting:
            raise ValueError(f"no line fits {pattern!r}: lines are DOOR/ROLE/ATTACK, such as {LINES[0]}")
        found += [line for line in fitting if line not in found]
    return found or [*LINES]


SHORT: Final = (
    Line("tcp", RIGHTLESS, PIPELINED),
    Line("tcp", READER, UNREAD),
    Line("tls", STRANGER, HANDSHAKE),
    Line("tls", RIGHTLESS, ONE_BYTE),
    Line("websocket", READER, UNREAD),
    Line("wss", STRANGER, HALF_SENT),
    Line("iggy09", RIGHTLESS, DRIPPING),
    Line("iggy09", STRANGER, WRONG_PASSWORD),
    Line("unix", STRANGER, PIPELINED),
    Line("http", STRANGER, UNREAD),
    Line("http", RIGHTLESS, WRONG_PASSWORD),
    Line("http", READER, ONE_BYTE),
    Line("https", STRANGER, HANDSHAKE),
    Line("metrics", STRANGER, UNREAD),
    Line("quic", STRANGER, WRONG_PASSWORD),
    Line("quic", READER, UNREAD),
    Line("grpc", RIGHTLESS, UNREAD),
    Line("grpc", STRANGER, WRONG_PASSWORD),
    Line("nats", RIGHTLESS, PIPELINED),
    Line("nats", STRANGER, HALF_SENT),
)
"""What `make test` walks: each door, each role, each attack."""
