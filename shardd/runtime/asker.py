"""In whose name a task asks: what it holds of a shared place counts for that user, and within the user for an address.

The dispatcher of a request sets the asker for the task of the request. Tasks of the server itself have no asker."""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final, NamedTuple


class Asker(NamedTuple):
    """`owner`: a user, or a door with what it does in nobody's name; None: the server itself."""

    owner: Hashable
    host: str


SERVER: Final = Asker(None, "")
ASKER: Final[ContextVar[Asker]] = ContextVar("asker", default=SERVER)
