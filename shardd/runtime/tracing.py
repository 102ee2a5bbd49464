"""Traces of what a process does, for whoever collects them: a seam without a library. `use` gives the process what
records and exports (shardd/observability/traces.py); until then everything here costs one comparison.

A context is what the W3C calls a traceparent: "00-<trace>-<span>-<flags>" in lower-case hexadecimal digits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import msgspec

Attributes = Mapping[str, str | int]
TRACEPARENT_BYTES: Final = 55
_TRACEPARENT: Final = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# a header of a message with that name, as every generation of clients writes it: its value is a string of that length
_HEADER: Final = b"\x0b\x00\x00\x00traceparent\x02\x37\x00\x00\x00"


class Sampled(msgspec.Struct, frozen=True):
    """A request that the engine answered alone. `began_ns`: since the epoch; `begin`: the first bytes of it."""

    name: str
    began_ns: int
    took_ns: int
    status: int
    attributes: dict[str, str | int]
    begin: bytes


class Tracer(Protocol):
    """Records spans. Calls come from any thread and do not wait."""

    def span(self, name: str, context: str, attributes: Attributes) -> AbstractContextManager[None]:
        """Around some work. `context` "": it belongs to the span that it is in, or begins a trace."""

    def refused(self, status: int) -> None:
        """The work of this span was answered with that status."""

    def sampled(self, request: Sampled, context: str) -> None: ...


class _Process:
    tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """From now on, in this process."""
    _Process.tracer = tracer


def current() -> Tracer | None:
    return _Process.tracer


def span(name: str, context: str = "", **attributes: str | int) -> AbstractContextManager[None]:
    tracer = _Process.tracer
    return nullcontext() if tracer is None else tracer.span(name, checked(context), attributes)


def refused(status: int) -> None:
    if _Process.tracer is not None:
        _Process.tracer.refused(status)


def sampled(request: Sampled) -> None:
    if _Process.tracer is not None:
        _Process.tracer.sampled(request, context_in(request.begin))


def checked(context: str) -> str:
    """A context that somebody gave; "" for anything else."""
    return context if _TRACEPARENT.fullmatch(context) is not None else ""


def context_in(begin: bytes) -> str:
    """Of the first message with such a header among the first bytes of a SEND; "" without one."""
    found = begin.find(_HEADER)
    if found < 0:
        return ""
    first = found + len(_HEADER)
    return checked(begin[first : first + TRACEPARENT_BYTES].decode("ascii", "replace"))
