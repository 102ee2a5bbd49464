"""What a CreateStreamRequest has to be (Lb 1.3): the checks that need no state, in the order in which Liftbridge makes
them, and refusals of what would end a Liftbridge server (docs/adr/0080-liftbridge.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from shardd.protocol.limits import NAME_BYTES_MAX, PARTITIONS_PER_REQUEST_MAX

if TYPE_CHECKING:  # workers import this module, also where protobuf is not installed
    from shardd.protocol.liftbridge.api_messages import CreateStreamRequest

RESERVED_STREAMS: Final = frozenset({"__cursors", "__activity"})
SUBJECT_BYTES_MAX: Final = 1_024
WILDCARD_TOKENS_MAX: Final = 16  # of a subject with a wildcard: what a message costs to be matched grows with them
_BROKERS: Final = 1
_WILDCARD_TAIL: Final = ">"
# what a subject of NATS may not contain
_SUBJECT_BREAKS: Final = frozenset(" \t\r\n")


class CreationError(Exception):
    """INVALID_ARGUMENT, with the text for the client."""


class NewStream(msgspec.Struct, frozen=True):
    """A stream to be made. `settings`: those that the request has, by the names of its fields."""

    name: str
    subject: str
    group: str
    partitions: int
    settings: dict[str, int | bool]


def new_stream(request: CreateStreamRequest) -> NewStream:
    """CreationError."""
    if not request.name:
        raise CreationError("Name cannot be empty")
    if not is_subject(request.subject):
        raise CreationError("Subject is invalid")
    if request.name in RESERVED_STREAMS:
        raise CreationError("Stream is reserved")
    _check_length(request.subject)
    factor = request.replicationFactor
    if factor < -1:
        raise CreationError(f"Invalid replicationFactor {factor}")
    if factor > _BROKERS:
        raise CreationError(f"Invalid replicationFactor {factor}, cluster size {_BROKERS}")
    _check_name(request.name)
    partitions = request.partitions or 1
    if not 1 <= partitions <= PARTITIONS_PER_REQUEST_MAX:
        raise CreationError(f"Invalid partitions {partitions}: 1 to {PARTITIONS_PER_REQUEST_MAX}")
    if partitions > 1 and request.subject.split(".")[-1] == _WILDCARD_TAIL:
        raise CreationError("Subject is invalid: nothing may come after >, and partitions have subjects of their own")
    settings = _settings(request)
    for name in ("cleanerInterval", "segmentMaxBytes"):
        if settings.get(name, 0) < 0:
            raise CreationError(f"{name} is negative")
    return NewStream(request.name, request.subject, request.group, partitions, settings)


def is_subject(text: str) -> bool:
    """Whether a subject of NATS: tokens with a dot between them, none empty, `>` as the last one only."""
    if not _SUBJECT_BREAKS.isdisjoint(text) or not text.isprintable():
        return False
    tokens = text.split(".")
    return all(tokens) and _WILDCARD_TAIL not in tokens[:-1]


def _check_length(subject: str) -> None:
    if len(subject.encode()) > SUBJECT_BYTES_MAX:
        raise CreationError(f"Subject has more than {SUBJECT_BYTES_MAX} bytes")
    tokens = subject.split(".")
    if len(tokens) > WILDCARD_TOKENS_MAX and not {"*", _WILDCARD_TAIL}.isdisjoint(tokens):
        raise CreationError(f"Subject has wildcards and more than {WILDCARD_TOKENS_MAX} tokens")


def _check_name(name: str) -> None:
    if not name.isprintable() or any(sign.isspace() for sign in name):
        raise CreationError("Name has spaces or control characters")
    if name.startswith(".") or name.endswith("."):
        raise CreationError("Name begins or ends with a dot")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise CreationError(f"Name has more than {NAME_BYTES_MAX} bytes")


def _settings(request: CreateStreamRequest) -> dict[str, int | bool]:
    """Those that are set, also to 0 or false: absent ones are the server's to choose."""
    return {field.name: value.value for field, value in request.ListFields() if field.message_type is not None}
