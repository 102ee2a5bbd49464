"""What a call ends with, beside success: a status of gRPC and its text, as clients of Liftbridge know them."""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status

READ_ONLY_TEXT: Final = "readonly partition: {}"
NO_LOGIN: Final = frozenset(
    {
        Status.UNAUTHENTICATED,
        Status.INVALID_CREDENTIALS,
        Status.INVALID_USERNAME,
        Status.INVALID_PASSWORD,
        Status.USER_INACTIVE,
        Status.INVALID_ACCESS_TOKEN,
        Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    }
)
_CODES: Final = {
    Status.UNAUTHORIZED: StatusCode.PERMISSION_DENIED,
    Status.INVALID_CONFIGURATION: StatusCode.INVALID_ARGUMENT,
    Status.INVALID_COMMAND: StatusCode.INVALID_ARGUMENT,
    Status.INVALID_FORMAT: StatusCode.INVALID_ARGUMENT,
    Status.FEATURE_UNAVAILABLE: StatusCode.FAILED_PRECONDITION,
    Status.DISCONNECTED: StatusCode.UNAVAILABLE,
    Status.CLIENT_NOT_FOUND: StatusCode.UNAVAILABLE,
    Status.SHARD_COMMUNICATION_ERROR: StatusCode.UNAVAILABLE,
    Status.TASK_TIMEOUT: StatusCode.UNAVAILABLE,
    Status.INVALID_TOPIC_NAME: StatusCode.INVALID_ARGUMENT,
    Status.TOO_MANY_PARTITIONS: StatusCode.INVALID_ARGUMENT,
    Status.TOO_BIG_MESSAGE_PAYLOAD: StatusCode.INVALID_ARGUMENT,
    Status.TOO_BIG_USER_HEADERS: StatusCode.INVALID_ARGUMENT,
}
_TEXTS: Final = {
    Status.STREAM_ID_NOT_FOUND: (StatusCode.NOT_FOUND, "stream does not exist"),
    Status.TOPIC_ID_NOT_FOUND: (StatusCode.NOT_FOUND, "stream does not exist"),
    Status.PARTITION_NOT_FOUND: (StatusCode.NOT_FOUND, "partition does not exist"),
    Status.STREAM_NAME_ALREADY_EXISTS: (StatusCode.ALREADY_EXISTS, "stream already exists"),
    Status.TOPIC_NAME_ALREADY_EXISTS: (StatusCode.ALREADY_EXISTS, "stream already exists"),
}


class RpcError(Exception):
    """Ends a call."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def invalid(text: str) -> RpcError:
    return RpcError(StatusCode.INVALID_ARGUMENT, text)


def not_found(text: str) -> RpcError:
    return RpcError(StatusCode.NOT_FOUND, text)


def failed_precondition(text: str) -> RpcError:
    return RpcError(StatusCode.FAILED_PRECONDITION, text)


def denied(method: str, resource: str) -> RpcError:
    return RpcError(
        StatusCode.PERMISSION_DENIED, f"The client is not authorized to call {method} on resource {resource}"
    )


def is_login_lost(error: ShardError) -> bool:
    return error.status in NO_LOGIN


def rpc_error(error: ShardError | WorkerLostError, method: str = "", resource: str = "") -> RpcError:
    """Of what a worker has said. A worker that is lost comes back: clients try again."""
    if isinstance(error, WorkerLostError):
        return RpcError(StatusCode.UNAVAILABLE, "a part of the server is being restarted")
    if is_login_lost(error):
        return RpcError(StatusCode.UNAUTHENTICATED, "no valid login")
    if error.status is Status.UNAUTHORIZED:
        return denied(method, resource)
    if error.status in _TEXTS:
        return RpcError(*_TEXTS[error.status])
    text = str(error) or error.status.http_code
    return RpcError(_CODES.get(error.status, StatusCode.INTERNAL), text)
