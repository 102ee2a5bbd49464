"""Streams, topics, partitions and segments."""

from __future__ import annotations

from typing import Any, Final

from shardd.doors.http.endpoint import Call, Endpoint
from shardd.doors.http.errors import NothingFoundError
from shardd.doors.http.shapes import (
    NewTopic,
    PartitionsCount,
    SegmentsCount,
    Stream,
    StreamDetails,
    StreamName,
    Topic,
    TopicDetails,
    TopicUpdate,
)
from shardd.protocol.errors import ShardError, Status


async def found(call: Call, name: str, request: object) -> Any:
    """NothingFoundError when a service finds nothing."""
    value = await call.command(name, request)
    if value is None:
        raise NothingFoundError
    return value


async def require_topic(call: Call) -> None:
    """ShardError 1009, 2010. Who may not look at it hears nothing here."""
    for name, request, status in (
        ("get_stream", {"stream": call.identifier("stream")}, Status.STREAM_ID_NOT_FOUND),
        ("get_topic", call.topic, Status.TOPIC_ID_NOT_FOUND),
    ):
        try:
            if await call.command(name, request) is None:
                raise ShardError(status)
        except ShardError as error:
            if error.status is not Status.UNAUTHORIZED:
                raise


async def get_streams(call: Call) -> list[Stream]:
    return [Stream.of(each) for each in await call.command("get_streams")]


async def get_stream(call: Call) -> StreamDetails:
    return StreamDetails.of(await found(call, "get_stream", {"stream": call.identifier("stream")}))


async def create_stream(call: Call) -> StreamDetails:
    made = await call.command("create_stream", {"name": call.body.name})
    return StreamDetails.of({"stream": made, "topics": ()})


async def update_stream(call: Call) -> None:
    await call.command("update_stream", {"stream": call.identifier("stream"), "name": call.body.name})


async def delete_stream(call: Call) -> None:
    await call.command("delete_stream", {"stream": call.identifier("stream")})


async def purge_stream(call: Call) -> None:
    await call.command("purge_stream", {"stream": call.identifier("stream")})


async def get_topics(call: Call) -> list[Topic]:
    request = {"stream": call.identifier("stream")}
    topics = await call.command("get_topics", request)
    if not topics:
        try:
            await found(call, "get_stream", request)
        except ShardError as error:
            if error.status is not Status.UNAUTHORIZED:
                raise
    return [Topic.of(each) for each in topics]


async def get_topic(call: Call) -> TopicDetails:
    return TopicDetails.of(await found(call, "get_topic", call.topic))


async def create_topic(call: Call) -> TopicDetails:
    try:
        made = await call.command("create_topic", {"stream": call.identifier("stream"), **call.body.fields()})
    except ShardError as error:
        if error.status is Status.STREAM_ID_NOT_FOUND:
            raise NothingFoundError from None
        raise
    return TopicDetails.of(made)


async def update_topic(call: Call) -> None:
    await call.command("change_topic", {**call.topic, **call.body.fields()})


async def delete_topic(call: Call) -> None:
    await call.command("delete_topic", call.topic)


async def purge_topic(call: Call) -> None:
    await call.command("purge_topic", call.topic)


async def create_partitions(call: Call) -> None:
    await call.command("create_partitions", {**call.topic, "count": call.body.partitions_count})


async def delete_partitions(call: Call) -> None:
    await call.command("delete_partitions", {**call.topic, "count": call.query.partitions_count})


async def delete_segments(call: Call) -> None:
    request = {**call.topic, "partition": call.number("partition"), "count": call.query.segments_count}
    await call.command("delete_segments", request)


_STREAM: Final = "/streams/{stream}"
_TOPICS: Final = f"{_STREAM}/topics"
TOPIC: Final = f"{_TOPICS}/{{topic}}"
ENDPOINTS: Final = (
    Endpoint("GET", "/streams", get_streams, "All streams", reply=list[Stream]),
    Endpoint("POST", "/streams", create_stream, "Create a stream", body=StreamName, reply=StreamDetails),
    Endpoint("GET", _STREAM, get_stream, "A stream and its topics", reply=StreamDetails),
    Endpoint("PUT", _STREAM, update_stream, "Rename a stream", body=StreamName, status=204),
    Endpoint("DELETE", _STREAM, delete_stream, "Delete a stream", status=204),
    Endpoint("DELETE", f"{_STREAM}/purge", purge_stream, "Delete all messages of a stream", status=204),
    Endpoint("GET", _TOPICS, get_topics, "The topics of a stream", reply=list[Topic]),
    Endpoint("POST", _TOPICS, create_topic, "Create a topic", body=NewTopic, reply=TopicDetails),
    Endpoint("GET", TOPIC, get_topic, "A topic and its partitions", reply=TopicDetails),
    Endpoint("PUT", TOPIC, update_topic, "Change a topic", body=TopicUpdate, status=204),
    Endpoint("DELETE", TOPIC, delete_topic, "Delete a topic", status=204),
    Endpoint("DELETE", f"{TOPIC}/purge", purge_topic, "Delete all messages of a topic", status=204),
    Endpoint("POST", f"{TOPIC}/partitions", create_partitions, "Add partitions", body=PartitionsCount, status=201),
    Endpoint(
        "DELETE", f"{TOPIC}/partitions", delete_partitions, "Remove partitions", query=PartitionsCount, status=204
    ),
    Endpoint(
        "DELETE",
        f"{TOPIC}/partitions/{{partition}}",
        delete_segments,
        "Delete the oldest segments of a partition",
        query=SegmentsCount,
        status=204,
    ),
)
