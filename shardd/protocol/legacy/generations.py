"""The client generations with frames like classic ones, and by what they are told apart (docs/protocol/legacy.md).

A generation is a range of releases that send and read the same bytes. Code asks for a feature, never for a generation:
a feature begins with a release.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError
from shardd.protocol.primitives import Reader

Release = tuple[int, int, int]
OLD_LOGIN: Final = 32  # the code that LOGIN_USER had before it was 38; GET_USERS has no payload

OLD_LOGOUT: Final = 33


class ErrorBody(Enum):
    """What stands behind the head of a refusal. Where both may be, the core holds the text back until it is clear."""

    NONE = "none"
    TEXT = "text"  # a client panics without it


class Generation(msgspec.Struct, frozen=True):
    """`number`: of its dialect in the core (native/src/wire/legacy.c). `last`: the release that it ends with."""

    number: int
    name: str
    last: Release

    def has(self, *release: int) -> bool:
        """Whether it has what came with this release."""
        return self.last >= release

    @property
    def logs_in(self) -> bool:
        return self.has(0, 0, 70)

    @property
    def one_based(self) -> bool:
        """Ids of streams, topics, partitions, groups and users start at 1."""
        return not self.has(0, 8, 0)

    @property
    def chooses_ids(self) -> bool:
        """What is created carries an id; 0 leaves it to the server."""
        return not self.has(0, 8, 0)

    @property
    def error_body(self) -> ErrorBody:
        return ErrorBody.TEXT if self.has(0, 2, 5) and not self.has(0, 6, 60) else ErrorBody.NONE

    @property
    def missing_is_error(self) -> bool:
        """A question for what is not there gets a status: an empty answer makes the client panic."""
        return not self.has(0, 6, 10)

    @property
    def send_form(self) -> int:
        """native/src/wire/record_forms.h."""
        return 56 if self.has(0, 7, 0) else 24 if self.has(0, 0, 30) else 20

    @property
    def record_form(self) -> int:
        """native/src/wire/record_forms.h."""
        if self.has(0, 7, 0):
            return 56
        if self.has(0, 0, 40):
            return 45
        return 40 if self.has(0, 0, 30) else 36


def _range(number: int, first: str, last: str) -> Generation:
    major, minor, patch = map(int, last.split("."))
    return Generation(number, f"{first} to {last}", (major, minor, patch))


_ALL: Final = (
    _range(10, "0.0.11", "0.0.14"),
    _range(11, "0.0.15", "0.0.26"),
    _range(12, "0.0.30", "0.0.30"),
    _range(13, "0.0.40", "0.0.41"),
    _range(14, "0.0.50", "0.0.52"),
    _range(15, "0.0.53", "0.0.53"),
    _range(16, "0.0.60", "0.0.69"),
    _range(17, "0.0.70", "0.0.80"),
    _range(18, "0.0.81", "0.0.87"),
    _range(19, "0.0.90", "0.1.7"),
    _range(20, "0.2.0", "0.2.17"),
    _range(21, "0.2.18", "0.4.4"),
    _range(22, "0.5.0", "0.6.9"),
    _range(23, "0.6.10", "0.6.51"),
    _range(24, "0.6.60", "0.6.210"),
    _range(25, "0.7.0", "0.7.0"),
    _range(26, "0.8.0", "0.8.0"),
)
# What a connection without a version turns out to be: its topic has a compression; it reads no body of a refusal.
_PROVED: Final = (_range(27, "0.2.18", "0.4.4"), _range(28, "0.2.0", "0.2.4"))
GENERATIONS: Final = {each.number: each for each in (*_ALL, *_PROVED)}

NUMBERED: Final = GENERATIONS[10]
SHORT_RECORDS: Final = GENERATIONS[11]
WITHOUT_EXPIRY: Final = GENERATIONS[13]
WITH_EXPIRY: Final = GENERATIONS[15]
WITHOUT_USERS: Final = GENERATIONS[16]
OLD_LOGINS: Final = GENERATIONS[17]
NAMELESS_GROUPS: Final = GENERATIONS[18]
WITHOUT_SIZES: Final = GENERATIONS[19]
WITH_SIZES: Final = GENERATIONS[20]
UNVERSIONED: Final = GENERATIONS[21]  # or any earlier one with a login
COMPRESSED: Final = GENERATIONS[27]
WITH_SIZES_WITHOUT_BODIES: Final = GENERATIONS[28]
PYTHON_0_5: Final = GENERATIONS[25]
PYTHON_0_6: Final = GENERATIONS[26]


def generation_of(release: Release) -> Generation | None:
    """The one that a release belongs to; None: it is classic."""
    return next((each for each in _ALL if each.last >= release), None)


def generation_of_login(code: int, payload: bytes) -> Generation | None:
    """Who logs in like this; None: a classic client, or what is no login."""
    if code == OLD_LOGIN:
        return OLD_LOGINS if payload and _texts_end(payload) == len(payload) else None
    if code != Code.LOGIN_USER:
        return None
    end = _texts_end(payload)
    if end == len(payload):
        return UNVERSIONED
    reader = Reader(payload[end:])
    try:
        version, context = reader.text32(), reader.text32()
    except ShardError:
        return None
    release = _release(version)
    if release is None or context or release < (0, 5, 0):
        return None
    return generation_of(release)


def is_versioned_login(code: int, payload: bytes) -> bool:
    """One that says who asks, also on a connection of which another login was taken for an earlier client's."""
    return code == Code.LOGIN_USER and _texts_end(payload) < len(payload)


# Codes of 0.0.3 to 0.0.10 that mean nothing here, and commands without a payload whose codes had one then.
_BEFORE_FINAL_CODES: Final = frozenset({0, 2, 3, 4, 5, 13, 23, 30, 40, 45})
_WITHOUT_PAYLOAD: Final = frozenset({Code.GET_STATS, Code.GET_CLUSTER_METADATA, Code.GET_ME, Code.GET_CLIENTS})
_BARE_ID_BYTES: Final = 4


def is_before_final_codes(code: int, payload: bytes) -> bool:
    """What a client before 0.0.11 asks, whose codes mean other commands, on a connection without a login."""
    return code in _BEFORE_FINAL_CODES or (code in _WITHOUT_PAYLOAD and len(payload) >= _BARE_ID_BYTES)


def release_of(text: str) -> Generation:
    """The one of a release that is written as `1.2.3`; LookupError."""
    release = _release(text)
    found = None if release is None else generation_of(release)
    if found is None:
        raise LookupError(text)
    return found


def code_of(code: int, payload: bytes, generation: Generation) -> int:
    """What is meant by a code: login and logout had other numbers before 0.0.80."""
    if generation is OLD_LOGINS and code == OLD_LOGIN and payload:
        return Code.LOGIN_USER
    if generation is OLD_LOGINS and code == OLD_LOGOUT and not payload:
        return Code.LOGOUT_USER
    return code


def _texts_end(payload: bytes) -> int:
    """Where name and password end; beyond the payload when it is cut."""
    if not payload:
        return 1
    at = 1 + payload[0]
    return at + 1 if at >= len(payload) else at + 1 + payload[at]


def _release(text: str) -> Release | None:
    numbers = text.split(".")
    if len(numbers) != 3 or not all(number.isdecimal() and len(number) <= 4 for number in numbers):
        return None
    major, minor, patch = map(int, numbers)
    return major, minor, patch
