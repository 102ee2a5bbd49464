"""What may be said of a message that is not stored. An ack and an error name the stream, so a caller hears them only
when a worker has said that it may send there: rights come before existence (docs/security.md)."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.publish_batches import AckError, Outcome
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.requests import RequireRight, Right, StreamInfo

COMMAND: Final = "liftbridge_require_right"
STORED_IN_MAX: Final = 4_096  # pairs of a client and a stream in which it has stored a message
NO_RIGHT: Final = frozenset({Status.UNAUTHORIZED, Status.UNAUTHENTICATED, Status.FEATURE_UNAVAILABLE})
_AFTER_RIGHTS: Final = frozenset({Status.UNEXPECTED_OFFSET, Status.CANNOT_APPEND_MESSAGE})
"""The owner of a partition says these: the worker of the client has asked for the right before."""
_TOO_LARGE: Final = frozenset({Status.TOO_BIG_MESSAGE_PAYLOAD, Status.TOO_BIG_USER_HEADERS})
_log = logging.getLogger(__name__)


class Refusals:
    """Loop thread only. Remembers which clients know a stream because they have stored a message there: a client whose
    worker is lost cannot be asked for, and such a client hears all the same that its message may be lost."""

    def __init__(self) -> None:
        self._stored_in: OrderedDict[tuple[DoorClient, int], None] = OrderedDict()
        self._streams_of: dict[DoorClient, set[int]] = {}

    def __len__(self) -> int:
        return len(self._stored_in)

    def has_stored(self, client: DoorClient, stream: StreamInfo) -> bool:
        """True: it is the first one of this client."""
        key = client, stream.incarnation
        is_known = client in self._streams_of
        if key not in self._stored_in:
            self._stored_in[key] = None
            self._streams_of.setdefault(client, set()).add(stream.incarnation)
            if len(self._stored_in) > STORED_IN_MAX:
                self._drop_oldest()
        else:
            self._stored_in.move_to_end(key)
        return not is_known

    def forget(self, client: DoorClient) -> None:
        """It has left, and has heard of all its messages."""
        for incarnation in self._streams_of.pop(client, ()):
            del self._stored_in[client, incarnation]

    def _drop_oldest(self) -> None:
        (client, incarnation), _ = self._stored_in.popitem(last=False)
        streams = self._streams_of[client]
        streams.remove(incarnation)
        if not streams:
            del self._streams_of[client]

    async def judged(self, client: DoorClient, stream: StreamInfo, outcome: Outcome) -> Outcome:
        """What the client may hear of the refusal: that it has no right, where it has none."""
        if outcome.status in _AFTER_RIGHTS:
            return outcome
        if outcome.status in NO_RIGHT:
            return outcome._replace(right_is_known=False)
        try:
            await client.command(COMMAND, RequireRight(Right.SEND, (stream.name,)))
        except WorkerLostError:
            said = refused(Status.SHARD_COMMUNICATION_ERROR, "the worker was lost")
        except ShardError as error:
            said = refused(error.status, str(error))
        except Exception as error:  # of this program: the publisher hears of its message all the same
            _log.exception("the right to send to %s", stream.name)
            said = refused(Status.ERROR, str(error))
        else:
            return outcome
        if said.status in NO_RIGHT:
            return said._replace(right_is_known=False)
        if (client, stream.incarnation) in self._stored_in:
            return outcome
        may_be_stored = outcome.status is Status.TASK_TIMEOUT
        return (outcome if may_be_stored else said)._replace(right_is_known=False)


def refused(status: Status, reason: str) -> Outcome:
    error = AckError.TOO_LARGE if status in _TOO_LARGE else AckError.UNKNOWN
    if status is Status.UNEXPECTED_OFFSET:
        error = AckError.INCORRECT_OFFSET
    return Outcome(status, error=error, reason=reason)
