"""How often and with which pauses something is asked again, on the driver and in tasks: `fetchOffset.numRetries`,
`fetchOffset.retryIntervalMs`. A restart, the death of a worker and an outage of half a minute end within them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from shardd.client import ConnectionFailedError
from shardd.protocol.errors import ShardError, Status

_TRANSIENT: Final = {Status.SHARD_COMMUNICATION_ERROR, Status.DISCONNECTED}
_PAUSE_MAX_S: Final = 10.0


class ServerUnreachableError(ConnectionError):
    """All servers were tried often enough."""


class SilentServerError(ServerUnreachableError):
    """It takes requests and answers none in the time there was."""

    def __init__(self, address: str, waited_s: float) -> None:
        super().__init__(
            f"the server at {address} takes connections and does not answer within {waited_s:g} s: it may wait for its"
            " device (its log says so), or have more to do than it can; run the query again when it answers"
        )


@dataclass(frozen=True, slots=True)
class Retries:
    """`count` attempts after the first one, `interval_s` before the first of them; the pause doubles, up to 10 s."""

    count: int
    interval_s: float

    def pause(self, retry: int) -> None:
        """Sleeps before the retry of this number, from 1."""
        time.sleep(min(self.interval_s * 2 ** (retry - 1), _PAUSE_MAX_S))


def is_transient(error: ConnectionFailedError | ShardError) -> bool:
    """Whether the same question may be answered a moment later: the server restarts, or an owner does."""
    return isinstance(error, ConnectionFailedError) or error.status in _TRANSIENT


def unreachable(servers: tuple[str, ...], attempts: int, error: Exception) -> ServerUnreachableError:
    return ServerUnreachableError(
        f"no server of {', '.join(servers)} answers after {attempts} attempts: {error}."
        " Is it running, and is the option 'servers' right?"
    )
