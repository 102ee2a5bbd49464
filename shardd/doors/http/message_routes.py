"""Messages: sent and polled as JSON, or as batches of records (docs/protocol/http.md#batches)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from shardd.doors.http.consumer_routes import consumer_of
from shardd.doors.http.endpoint import BATCH, Call, Endpoint
from shardd.doors.http.errors import JSON, ClientGoneError, RejectedError
from shardd.doors.http.message_shapes import (
    POLLING,
    Polled,
    PollQuery,
    SendRequest,
    new_message,
    partitioning_of,
    polled_messages,
)
from shardd.doors.http.polls import HeldResponse
from shardd.doors.http.stream_routes import TOPIC
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Reader
from shardd.protocol.replies import PolledHead
from shardd.protocol.send_request import Partitioning, PartitioningKind, SendMessages

_SLICE_MESSAGES: Final = 256  # of one piece,
_SLICE_BYTES: Final = 256 << 10  # and behind so many bytes of them none
_SMALL_BYTES: Final = 1 << 20  # of records; more of them become JSON piece by piece


async def send(call: Call) -> None:
    await call.command("send_messages", _sent_batch(call) if call.raw else _sent_json(call))


async def poll(call: Call) -> Response:
    said: PollQuery = call.query
    async with call.polls.expect(call.owner, call.host, call.peer, stores=said.auto_commit) as place:
        if call.peer.is_gone:
            raise ClientGoneError  # what nobody reads commits no offset
        value = await call.command(
            "poll_messages",
            {
                "consumer": consumer_of(said.consumer_id),
                **call.topic,
                "partition": said.partition_id,
                "strategy": int(POLLING[said.kind]),
                "value": said.value,
                "count": said.count,
                "auto_commit": said.auto_commit,
            },
        )
    try:
        answer, size = _polled(call, value)
        return HeldResponse(answer, size, place)
    except BaseException:
        place.leave()
        raise


def _polled(call: Call, value: Any) -> tuple[Response, int]:
    """With the bytes that it keeps in memory."""
    if call.peer.is_gone:
        raise ClientGoneError
    if BATCH in call.request.headers.get("accept", ""):
        head = PolledHead(value["partition"], value["current_offset"], value["count"])
        batch = head.encode() + value["records"]
        return Response(batch, media_type=BATCH), len(batch)
    if len(value["records"]) <= _SMALL_BYTES:
        text = encode_polled(value)
        return Response(text, media_type=JSON), len(text)
    return StreamingResponse(_one_by_one(_json_parts(value)), media_type=JSON), len(value["records"])


async def flush(call: Call) -> Response:
    fsync = {"true": True, "false": False, "fsync=true": True, "fsync=false": False}.get(call.text("fsync"))
    if fsync is None:
        raise RejectedError(400, "Invalid URL: true or false")
    request = {**call.topic, "partition": call.number("partition"), "fsync": fsync}
    await call.command("flush_unsaved_buffer", request)
    return Response()


def _sent_json(call: Call) -> SendMessages:
    said: SendRequest = call.body
    address = call.topic
    to = partitioning_of(said.partitioning)
    return SendMessages.of(address["stream"], address["topic"], to, [new_message(each) for each in said.messages])


def _sent_batch(call: Call) -> SendMessages:
    """Partitioning, u32 count, index, records: SEND_MESSAGES without the topic."""
    address, reader = call.topic, Reader(call.raw)
    kind, value = reader.u8(), reader.take(reader.u8())
    try:
        partitioning = PartitioningKind(kind)
    except ValueError:
        raise ShardError(Status.INVALID_COMMAND, "unknown partitioning") from None
    if partitioning is PartitioningKind.PARTITION and len(value) != 4:
        raise ShardError(Status.INVALID_COMMAND, "a partition has 4 bytes")
    partition = int.from_bytes(value, "little") if partitioning is PartitioningKind.PARTITION else 0
    key = value if partitioning is PartitioningKind.KEY else b""
    count = reader.u32()
    to = Partitioning(partitioning, partition, key)
    return SendMessages(address["stream"], address["topic"], to, count, reader.rest_view())  # type: ignore[arg-type]


def encode_polled(value: Any) -> bytes:
    """`Polled` as JSON."""
    messages = [*polled_messages(value["records"], value["count"])]
    return msgspec.json.encode(Polled(value["partition"], value["current_offset"], value["count"], messages))


def _json_parts(value: Any) -> Iterator[bytes]:
    """`Polled`, in pieces: a large one is never there as a whole."""
    encode = msgspec.json.encode
    head = Polled(value["partition"], value["current_offset"], value["count"], ())
    yield encode(head)[: -len(b"]}")]
    slice_, size, first = [], 0, True
    for message in polled_messages(value["records"], value["count"]):
        slice_.append(message)
        size += len(message.payload)
        if len(slice_) == _SLICE_MESSAGES or size >= _SLICE_BYTES:
            yield (b"" if first else b",") + encode(slice_)[1:-1]
            slice_, size, first = [], 0, False
    if slice_:
        yield (b"" if first else b",") + encode(slice_)[1:-1]
    yield b"]}"


async def _one_by_one(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """On the loop: an iterator that is none of asyncio would get a thread."""
    for part in parts:
        yield part


_MESSAGES: Final = f"{TOPIC}/messages"
ENDPOINTS: Final = (
    Endpoint("POST", _MESSAGES, send, "Send messages", body=SendRequest, status=201, binary=True),
    Endpoint("GET", _MESSAGES, poll, "Poll messages", query=PollQuery, reply=Polled, binary=True),
    Endpoint(
        "GET", f"{_MESSAGES}/flush/{{partition}}/{{fsync}}", flush, "Write and sync what is not on the device", media=""
    ),
)
