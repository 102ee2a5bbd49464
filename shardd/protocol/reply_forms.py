"""How the payload of an answer becomes a value (docs/protocol/commands.md#rules): one value, one value or nothing, or a
list without a count. The types of replies read the values. Sans-IO; `ShardError` 3 for a cut payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shardd.protocol.primitives import Payload, Reader

T = TypeVar("T")
Read = Callable[[Reader], T]


def empty(payload: Payload) -> None:
    """The answer has no payload."""


def raw(payload: Payload) -> bytes:
    """The payload is the value."""
    return bytes(payload)


def one(read: Read[T]) -> Callable[[Payload], T]:
    return lambda payload: read(Reader(payload))


def optional(read: Read[T]) -> Callable[[Payload], T | None]:
    """An empty payload says that there is no such thing."""
    return lambda payload: read(Reader(payload)) if payload else None


def each(read: Read[T]) -> Callable[[Payload], list[T]]:
    """The entries of a list stand one behind the other."""
    return lambda payload: read_all(read, Reader(payload))


def read_all(read: Read[T], reader: Reader) -> list[T]:
    """The entries that fill the rest of a payload."""
    entries = []
    while reader.remaining:
        entries.append(read(reader))
    return entries
