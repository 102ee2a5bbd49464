"""What a publisher hears of a message: an `Ack`, or an error."""

from __future__ import annotations

import secrets
import string
import time
from typing import Final

from grpc import StatusCode

from shardd.doors.liftbridge.publish_batches import AckError, Outcome
from shardd.doors.liftbridge.status import NO_LOGIN, READ_ONLY_TEXT, RpcError, denied
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.api_messages import Ack, PublishRequest, PublishResponse, PublishToSubjectRequest

TOO_LARGE_TEXT: Final = "message exceeds max replication size"
INCORRECT_OFFSET_TEXT: Final = "incorrect expected offset"
Publication = PublishRequest | PublishToSubjectRequest
"""A message that a client publishes: to a partition of a stream, or to everything that listens to a subject."""
_INBOX_CHARACTERS: Final = 22
_ALPHABET: Final = string.ascii_letters + string.digits


class PublishError:
    """`proto.PublishAsyncError.Code`."""

    UNKNOWN = 0
    BAD_REQUEST = 1
    NOT_FOUND = 2
    INTERNAL = 3
    READONLY = 4
    INCORRECT_OFFSET = 5
    ENCRYPTION_FAILED = 6
    PERMISSION_DENIED = 7


_ASYNC_CODES: Final = {
    StatusCode.INVALID_ARGUMENT: PublishError.BAD_REQUEST,
    StatusCode.NOT_FOUND: PublishError.NOT_FOUND,
    StatusCode.FAILED_PRECONDITION: PublishError.READONLY,
    StatusCode.PERMISSION_DENIED: PublishError.PERMISSION_DENIED,
    StatusCode.UNAUTHENTICATED: PublishError.PERMISSION_DENIED,
    StatusCode.UNKNOWN: PublishError.UNKNOWN,
}


def new_inbox(namespace: str) -> str:
    return f"{namespace}.ack.{''.join(secrets.choice(_ALPHABET) for _ in range(_INBOX_CHARACTERS))}"


def refusal(outcome: Outcome, method: str, stream: str, partition: int) -> RpcError:
    """Of a message that is not stored, or of which nobody knows."""
    status = outcome.status
    if outcome.error is AckError.TOO_LARGE:
        return RpcError(StatusCode.INVALID_ARGUMENT, TOO_LARGE_TEXT)
    if outcome.error is AckError.INCORRECT_OFFSET:
        return RpcError(StatusCode.UNKNOWN, INCORRECT_OFFSET_TEXT)
    if status in (Status.TOPIC_ID_NOT_FOUND, Status.STREAM_ID_NOT_FOUND):
        return RpcError(StatusCode.NOT_FOUND, f"no such stream: {stream}")
    if status is Status.PARTITION_NOT_FOUND:
        return RpcError(StatusCode.NOT_FOUND, f"no such partition: {partition}")
    if status is Status.UNAUTHORIZED:
        return denied(method, stream)
    if status in NO_LOGIN:
        return RpcError(StatusCode.UNAUTHENTICATED, "no valid login")
    if status is Status.CANNOT_APPEND_MESSAGE:
        return RpcError(StatusCode.FAILED_PRECONDITION, READ_ONLY_TEXT.format(partition))
    if status in _LATER:
        return RpcError(StatusCode.UNAVAILABLE, outcome.reason or status.http_code)
    return RpcError(StatusCode.INTERNAL, outcome.reason or status.http_code)


_LATER: Final = frozenset(
    {Status.TASK_TIMEOUT, Status.SHARD_COMMUNICATION_ERROR, Status.DISCONNECTED, Status.CLIENT_NOT_FOUND}
)


def ack_of(outcome: Outcome, stream: str, base_subject: str, subject: str, request: Publication, inbox: str) -> Ack:
    """An `Ack`: of what is stored, or a negative one."""
    ack = Ack(
        stream=stream,
        partitionSubject=base_subject,
        msgSubject=subject,
        ackInbox=inbox,
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
    )
    if outcome.status is Status.OK:
        ack.offset, ack.receptionTimestamp = outcome.offset, outcome.timestamp_ns
    else:
        ack.ackError = outcome.error if outcome.error is not AckError.OK else AckError.UNKNOWN
    if outcome.error is not AckError.TOO_LARGE:
        ack.commitTimestamp = time.time_ns()
    return ack


def async_response(ack: Ack) -> bytes:
    response = PublishResponse(ack=ack, correlationId=ack.correlationId)
    return response.SerializeToString()


def async_error(error: RpcError, correlation_id: str) -> bytes:
    """With an ack that is there and empty, for old clients."""
    response = PublishResponse(correlationId=correlation_id)
    response.ack.SetInParent()
    response.asyncError.code = _async_code(error)
    response.asyncError.message = str(error)
    return response.SerializeToString()


def _async_code(error: RpcError) -> int:
    if error.code is StatusCode.UNKNOWN and str(error) == INCORRECT_OFFSET_TEXT:
        return PublishError.INCORRECT_OFFSET
    return _ASYNC_CODES.get(error.code, PublishError.INTERNAL)
