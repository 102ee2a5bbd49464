"""What Spark asks beside the commands of the client: bounds of partitions with the server's codec, as many requests as
they need, and commands side by side."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from shardd.client import commands, statuses
from shardd.client.blocking import BlockingLink
from shardd.client.errors import ProtocolError, ServerError, of_status
from shardd.protocol.bounds import GetPartitionBounds, TopicBounds, decode_reply
from shardd.protocol.errors import ShardError
from shardd.protocol.extensions import ExtensionCode

T = TypeVar("T")
Answer = TypeVar("Answer", bytes, memoryview)


def decoded(read: Callable[[Answer], T], answer: Answer) -> T:
    """What the codec of the server reads. ProtocolError."""
    try:
        return read(answer)
    except (ShardError, ValueError, IndexError, struct.error) as error:
        raise ProtocolError(f"an answer cannot be read: {error}") from error


def call_each(link: BlockingLink, asked: Sequence[commands.Command[T]]) -> list[T | ServerError]:
    """The answers of as many commands, which are on their way at once. ClientError."""
    for each in asked:
        link.send(each.code, each.payload)
    answers: list[T | ServerError] = []
    for each in asked:
        try:
            answers.append(each.read(bytes(link.receive())))
        except ServerError as error:
            answers.append(error)
    return answers


def partition_bounds(link: BlockingLink, request: GetPartitionBounds) -> TopicBounds:
    """Of the one topic in the request. What is too much for one request is asked for in pieces, each of them of its own
    moment. ServerError: INVALID_COMMAND (3) of a server that is not shardd."""
    [selection] = request.topics
    try:
        return _bounds(link, request)
    except ServerError as error:
        if error.status != statuses.TOO_MANY_PARTITIONS:
            raise
    wanted = selection.partitions
    if not wanted:
        found = link.call(commands.topic(selection.stream, selection.topic))
        if found is None:  # the server tells whether the stream or the topic is missing
            return _bounds(link, request)
        wanted = tuple(range(found.partitions_count))
    return _piece(link, request, wanted)


def _bounds(link: BlockingLink, request: GetPartitionBounds) -> TopicBounds:
    return decoded(decode_reply, link.request(ExtensionCode.GET_PARTITION_BOUNDS, request.encode()))[0]


def _piece(link: BlockingLink, request: GetPartitionBounds, wanted: tuple[int, ...]) -> TopicBounds:
    """Halved for as long as it is too much. ServerError: TOPIC_ID_NOT_FOUND (2010) when the topic is deleted or made
    anew on the way."""
    [selection] = request.topics
    try:
        return _bounds(link, replace(request, topics=(replace(selection, partitions=wanted),)))
    except ServerError as error:
        if error.status != statuses.TOO_MANY_PARTITIONS or len(wanted) < 2:
            raise
    half = len(wanted) // 2
    first, second = _piece(link, request, wanted[:half]), _piece(link, request, wanted[half:])
    if (first.stream_id, first.topic_id) != (second.stream_id, second.topic_id):
        raise of_status(statuses.TOPIC_NOT_FOUND, ExtensionCode.GET_PARTITION_BOUNDS)
    return replace(first, partitions=first.partitions + second.partitions)
