"""Consumer groups and stored offsets. Who polls over HTTP is a plain consumer: groups move with connections."""

from __future__ import annotations

from typing import Any, Final

from shardd.doors.http.endpoint import Call, Endpoint, identifier_of
from shardd.doors.http.shapes import (
    Group,
    GroupDetails,
    NewOffset,
    Offset,
    OffsetQuery,
    PartitionQuery,
    StreamName,
)
from shardd.doors.http.stream_routes import TOPIC, found, require_topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import ConsumerKind


def consumer_of(text: int | str) -> dict[str, Any]:
    """A plain consumer, by number or name."""
    identifier = text if isinstance(text, int) else identifier_of(text)
    return {"kind": int(ConsumerKind.CONSUMER), "identifier": identifier}


async def get_groups(call: Call) -> list[Group]:
    groups = await call.command("get_consumer_groups", call.topic)
    if not groups:
        await require_topic(call)
    return [Group.of(each) for each in groups]


async def get_group(call: Call) -> GroupDetails:
    group = await call.command("get_consumer_group", {**call.topic, "group": call.identifier("group")})
    if group is None:
        await require_topic(call)
        raise ShardError(Status.CONSUMER_GROUP_ID_NOT_FOUND)
    return GroupDetails.of(group)


async def create_group(call: Call) -> GroupDetails:
    made = await call.command("create_consumer_group", {**call.topic, "name": call.body.name})
    return GroupDetails.of({"group": made, "members": ()})


async def delete_group(call: Call) -> None:
    await call.command("delete_consumer_group", {**call.topic, "group": call.identifier("group")})


async def get_offset(call: Call) -> Offset:
    said: OffsetQuery = call.query
    request = {"consumer": consumer_of(said.consumer_id), **call.topic, "partition": said.partition_id}
    value = await call.command("get_consumer_offset", request)
    if value is None:
        await require_topic(call)
        value = await found(call, "get_consumer_offset", request)
    return Offset(value["partition"], value["current_offset"], value["stored_offset"])


async def store_offset(call: Call) -> None:
    said: NewOffset = call.body
    request = {
        "consumer": consumer_of(said.consumer_id),
        **call.topic,
        "partition": said.partition_id,
        "offset": said.offset,
    }
    await call.command("store_consumer_offset", request)


async def delete_offset(call: Call) -> None:
    consumer = consumer_of(call.identifier("consumer"))
    partition = call.query.partition_id
    await call.command("delete_consumer_offset", {"consumer": consumer, **call.topic, "partition": partition})


_GROUPS: Final = f"{TOPIC}/consumer-groups"
_OFFSETS: Final = f"{TOPIC}/consumer-offsets"
ENDPOINTS: Final = (
    Endpoint("GET", _GROUPS, get_groups, "The consumer groups of a topic", reply=list[Group]),
    Endpoint("POST", _GROUPS, create_group, "Create a consumer group", body=StreamName, reply=GroupDetails, status=201),
    Endpoint("GET", f"{_GROUPS}/{{group}}", get_group, "A consumer group and its members", reply=GroupDetails),
    Endpoint("DELETE", f"{_GROUPS}/{{group}}", delete_group, "Delete a consumer group", status=204),
    Endpoint("GET", _OFFSETS, get_offset, "The offset that a consumer has stored", query=OffsetQuery, reply=Offset),
    Endpoint("PUT", _OFFSETS, store_offset, "Store an offset", body=NewOffset, status=204),
    Endpoint("DELETE", f"{_OFFSETS}/{{consumer}}", delete_offset, "Forget an offset", query=PartitionQuery, status=204),
)
