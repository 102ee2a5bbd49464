"""How often and with which pauses something is asked again, on the driver and in tasks: `fetchOffset.numRetries`,
`fetchOffset.retryIntervalMs`. A restart, the death of a worker and an outage of half a minute end within them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from shardd.client.blocking import BlockingLink
from shardd.client.errors import ClientError, ServerError
from shardd.client.transport import way_to
from shardd.protocol.errors import Status

_TRANSIENT: Final = frozenset({Status.SHARD_COMMUNICATION_ERROR, Status.DISCONNECTED})
_PAUSE_MAX_S: Final = 10.0
_DOUBLED_MAX: Final = 64  # times: every pause is the longest by then


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
class Servers:
    """The servers of the option `servers`, which are asked in turn, and the user who asks. Pickled to the executors."""

    addresses: tuple[str, ...]
    username: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        """Without secrets."""
        return f"Servers({self.addresses}, {'token' if self.token else repr(self.username)})"

    def __len__(self) -> int:
        return len(self.addresses)

    def address(self, turn: int) -> str:
        return self.addresses[turn % len(self.addresses)]

    def turn_of(self, link: BlockingLink) -> int:
        """The turn of the server that a connection belongs to."""
        ways = [way_to(each).address for each in self.addresses]
        return ways.index(link.address) if link.address in ways else 0

    def open(self, turn: int, timeout_s: float) -> BlockingLink:
        """A connection to the server of this turn. ClientError."""
        way = way_to(self.address(turn), self.username, self.password, self.token)
        return BlockingLink(way, timeout_s=timeout_s)


def pause_s(first_s: float, times: int, pause_max_s: float) -> float:
    """A pause that has doubled so many times."""
    return min(first_s * 2.0 ** min(times, _DOUBLED_MAX), pause_max_s)


@dataclass(frozen=True, slots=True)
class Retries:
    """`count` attempts after the first one, `interval_s` before the first of them; the pause doubles, up to 10 s."""

    count: int
    interval_s: float

    def pause(self, retry: int) -> None:
        """Sleeps before the retry of this number, from 1."""
        time.sleep(pause_s(self.interval_s, retry - 1, _PAUSE_MAX_S))


def is_transient(error: ClientError, statuses: frozenset[Status] = _TRANSIENT) -> bool:
    """Whether the same question may be answered a moment later: the server restarts, or an owner does. `statuses`: the
    refusals that are of the moment."""
    return not isinstance(error, ServerError) or error.status in statuses


def unreachable(servers: Servers, attempts: int, error: Exception) -> ServerUnreachableError:
    return ServerUnreachableError(
        f"no server of {', '.join(servers.addresses)} answers after {attempts} attempts: {error}."
        " Is it running, and is the option 'servers' right?"
    )
