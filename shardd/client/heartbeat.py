"""Signs of life of a member of a group (docs/extensions.md#announce-heartbeat)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from shardd.client import answers, statuses, wire
from shardd.client.command_codes import ANNOUNCE_HEARTBEAT
from shardd.client.commands import Command, of
from shardd.client.errors import ServerError, SettingsError
from shardd.client.link import Link

TIMEOUT_MS: Final = 30_000
_TIMEOUT_MIN_MS: Final = 1_000
_TIMEOUT_MAX_MS: Final = 3_600_000
_PINGS: Final = 4  # in one timeout: the server sees life also when several of them come late

Ask = Callable[[Command[Any]], Awaitable[Any]]


def announce_heartbeat(timeout_ms: int) -> Command[int]:
    """The answer is the silence that the server allows, in milliseconds."""
    return of(ANNOUNCE_HEARTBEAT, wire.u32(timeout_ms), answers.number)


class Heartbeat:
    """Of one consumer. SettingsError."""

    def __init__(self, timeout_ms: int) -> None:
        if not _TIMEOUT_MIN_MS <= timeout_ms <= _TIMEOUT_MAX_MS:
            raise SettingsError(
                f"heartbeat_timeout_ms {timeout_ms} is not within {_TIMEOUT_MIN_MS} to {_TIMEOUT_MAX_MS}"
            )
        self._timeout_ms = timeout_ms

    async def begin(self, link: Link, ask: Ask, patience_s: float) -> None:
        """Announces it and sends PING in the background from now on. A server that no longer offers that hears
        nothing of it. ClientError."""
        try:
            allowed_ms = await ask(announce_heartbeat(self._timeout_ms))
        except ServerError as error:
            if error.status != statuses.INVALID_COMMAND:
                raise
        else:
            link.keep_alive(allowed_ms / 1000 / _PINGS, patience_s)
