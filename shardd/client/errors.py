"""What can go wrong. Errors have `status` (0: none of the server), `retryable` (the call may work later) and `fate`."""

from __future__ import annotations

from enum import Enum

from shardd.client import statuses


class Fate(Enum):
    """What became of a request whose answer did not come."""

    NOT_SENT = "not sent"  # it was not carried out, and will not be
    UNKNOWN = "unknown"  # it may have been carried out


class ClientError(Exception):
    """The root of all errors here."""

    retryable: bool = False
    status: int = 0
    fate: Fate = Fate.NOT_SENT


class SettingsError(ClientError, ValueError):
    """Settings, a connection string or arguments that make no sense."""


class FeatureUnavailableError(ClientError):
    """Neither this client nor the server has it yet."""


class ProtocolError(ClientError):
    """An answer that cannot be read."""

    fate = Fate.UNKNOWN


class ClosedError(ClientError):
    """The object was closed."""


class ConnectionLostError(ClientError, ConnectionError):
    """No connection, or it broke. `refused`: nothing listens there."""

    retryable = True
    refused = False

    def __init__(self, message: str, fate: Fate = Fate.NOT_SENT) -> None:
        super().__init__(message)
        self.fate = fate


class TlsError(ClientError, ConnectionError):
    """One side does not trust the other, or they do not agree: not before somebody changes a certificate."""


class DeadlineError(ClientError, TimeoutError):
    """The time for the call was over."""

    retryable = True

    def __init__(self, message: str, fate: Fate = Fate.UNKNOWN) -> None:
        super().__init__(message)
        self.fate = fate


_SEND = 101  # when it is lost on the way, it was not stored


class ServerError(ClientError):
    """The server answered with a status."""

    def __init__(self, status: int, code: int = 0) -> None:
        remedy = f": {statuses.REMEDIES[status]}" if status in statuses.REMEDIES else ""
        super().__init__(f"the server answered status {status} ({statuses.NAMES.get(status, 'unknown')}){remedy}")
        self.status = status
        self.code = code
        unknown = status in (statuses.TIMED_OUT, statuses.NOT_SYNCED) or (
            status == statuses.LOST_ON_THE_WAY and code != _SEND
        )
        self.fate = Fate.UNKNOWN if unknown else Fate.NOT_SENT


class AuthenticationError(ServerError):
    """No login, or it was refused."""


class PermissionDeniedError(ServerError):
    """The user may not do that."""


class RightNeededError(PermissionDeniedError):
    """The user may not do that; the sentence names the rights for it."""

    def __init__(self, needs: str, error: ServerError) -> None:
        super().__init__(error.status, error.code)
        self.args = (f"{needs} (status {error.status}, {statuses.NAMES[error.status]})",)


class NotFoundError(ServerError):
    """There is no such stream, topic, partition, group, user, token or stored offset."""


class AlreadyExistsError(ServerError):
    """The name is taken."""


class UnavailableError(ServerError):
    """The server, or a part of it, is not there at this moment."""

    retryable = True


class StorageError(ServerError):
    """The disk or the topic takes no more, or what is there is damaged."""


class InvalidRequestError(ServerError):
    """The server takes no such request or value."""


class ConsumerNameTakenError(ServerError):
    """Another consumer, whose name has the same number, has stored an offset in the partition."""

    def __init__(self, status: int, code: int = 0) -> None:
        super().__init__(status, code)
        because = "the stored offset belongs to another consumer, whose name has the same 32-bit number"
        self.args = (f"{because}; take another name (status {status}, {statuses.NAMES[status]})",)


class GroupInUseError(ClientError):
    """A group with members is deleted only with `force`."""


class GroupDeletedError(ClientError):
    """The group of a member was deleted, with its stored offsets. The next call of the member makes the group anew, and
    reads from `start`."""


class DeliveryError(ClientError):
    """A message was not stored, or nobody knows: `fate`. `__cause__` is the last thing that went wrong."""

    def __init__(self, cause: ClientError, fate: Fate) -> None:
        what = "was not stored" if fate is Fate.NOT_SENT else "may or may not be stored"
        super().__init__(f"the message {what}: {cause}")
        self.__cause__ = cause
        self.status, self.retryable, self.fate = cause.status, cause.retryable, fate


_LOGINS = frozenset({38, 44})


def of_status(status: int, code: int = 0) -> ServerError:
    """The error for a status that answers the request `code`."""
    if status in statuses.AUTHENTICATION and (code in _LOGINS or status == 40):
        return AuthenticationError(status, code)
    for numbers, kind in _KINDS:
        if status in numbers:
            return kind(status, code)
    return InvalidRequestError(status, code) if status != 1 else ServerError(status, code)


_KINDS: tuple[tuple[frozenset[int], type[ServerError]], ...] = (
    (statuses.PERMISSION, PermissionDeniedError),
    (statuses.NOT_FOUND, NotFoundError),
    (statuses.ALREADY_EXISTS, AlreadyExistsError),
    (statuses.UNAVAILABLE, UnavailableError),
    (statuses.STORAGE, StorageError),
    (frozenset({statuses.CONSUMER_NAME_TAKEN}), ConsumerNameTakenError),
)
