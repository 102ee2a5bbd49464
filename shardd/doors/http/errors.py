"""Errors as HTTP has them: a status, and what is wrong as JSON (docs/protocol/http.md#errors)."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import PlainTextResponse, Response

from shardd.protocol.errors import ShardError, Status

JSON: Final = "application/json"
_NOT_FOUND: Final = frozenset(
    {
        Status.RESOURCE_NOT_FOUND,
        Status.CLIENT_NOT_FOUND,
        Status.STREAM_ID_NOT_FOUND,
        Status.TOPIC_ID_NOT_FOUND,
        Status.PARTITION_NOT_FOUND,
        Status.SEGMENT_NOT_FOUND,
        Status.CONSUMER_OFFSET_NOT_FOUND,
        Status.CONSUMER_GROUP_ID_NOT_FOUND,
        Status.CONSUMER_GROUP_MEMBER_NOT_FOUND,
    }
)
_UNAUTHORIZED: Final = frozenset({Status.UNAUTHENTICATED, Status.INVALID_ACCESS_TOKEN})
_AGAIN: Final = frozenset({Status.DISCONNECTED, Status.SHARD_COMMUNICATION_ERROR})
_FIELDS: Final = {
    Status.STREAM_ID_NOT_FOUND: "stream_id",
    Status.TOPIC_ID_NOT_FOUND: "topic_id",
    Status.PARTITION_NOT_FOUND: "partition_id",
    Status.SEGMENT_NOT_FOUND: "segment_id",
    Status.CLIENT_NOT_FOUND: "client_id",
    Status.STREAM_NAME_ALREADY_EXISTS: "name",
    Status.INVALID_STREAM_NAME: "name",
    Status.TOPIC_NAME_ALREADY_EXISTS: "name",
    Status.INVALID_TOPIC_NAME: "name",
    Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS: "name",
    Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS: "name",
    Status.INVALID_OFFSET: "offset",
    Status.USER_ALREADY_EXISTS: "username",
}


class ErrorBody(msgspec.Struct, frozen=True):
    """`id`: the status as the binary protocol has it (docs/protocol/statuses.md); `code`: its name."""

    id: int
    code: str
    reason: str
    field: str | None


class RejectedError(Exception):
    """A request that says nothing to any service: plain text, as frameworks answer. `again`: it may be sent again in a
    second."""

    def __init__(self, status: int, text: str, *, close: bool = False, again: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.close = close
        self.again = again

    def response(self) -> Response:
        headers = ({"connection": "close"} if self.close else {}) | ({"retry-after": "1"} if self.again else {})
        return PlainTextResponse(str(self), self.status, headers)


class ClientGoneError(RejectedError):
    """Before its turn: nobody would have the answer."""

    def __init__(self) -> None:
        super().__init__(400, "The client has left", close=True)


class NotAuthenticatedError(Exception):
    """No token, or one that is worth nothing: 401, and not a word why."""


class NothingFoundError(Exception):
    """What a GET asks for is not there."""


def http_status(status: Status) -> int:
    if status in _NOT_FOUND:
        return 404
    if status in _UNAUTHORIZED:
        return 401
    if status in _AGAIN:
        return 503
    return 403 if status is Status.UNAUTHORIZED else 400


def error_response(error: ShardError) -> Response:
    body = ErrorBody(int(error.status), error.status.http_code, str(error), _FIELDS.get(error.status))
    return Response(msgspec.json.encode(body), http_status(error.status), media_type=JSON)


def nothing_found() -> Response:
    body = ErrorBody(404, "not_found", "Resource not found", None)
    return Response(msgspec.json.encode(body), 404, media_type=JSON)


def not_authenticated() -> Response:
    return Response(status_code=401)
