"""The JSON of requests and answers: field names on the wire are those of Iggy's HTTP API
(docs/protocol/http.md#shapes). Sizes are texts, times microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from shardd.doors.http.sizes import size_text
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Compression

Value = Mapping[str, Any]
"""What a service has returned, as a map."""

U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, msgspec.Meta(ge=0)]  # services judge the upper bound: it is beyond what a schema can say
CompressionName = Literal["none", "gzip"]
COMPRESSION: Final[dict[CompressionName, int]] = {"none": Compression.NONE, "gzip": Compression.GZIP}
_COMPRESSION_NAMES: Final[dict[int, CompressionName]] = {number: name for name, number in COMPRESSION.items()}


class Stream(msgspec.Struct, frozen=True):
    id: int
    created_at_us: int = msgspec.field(name="created_at")
    name: str
    size: str
    messages_count: int
    topics_count: int

    @classmethod
    def of(cls, value: Value) -> Stream:
        return cls(**_stream_fields(value))


class Topic(msgspec.Struct, frozen=True):
    id: int
    created_at_us: int = msgspec.field(name="created_at")
    name: str
    size: str
    message_expiry_us: int = msgspec.field(name="message_expiry")
    compression: CompressionName = msgspec.field(name="compression_algorithm")
    max_topic_size_bytes: int = msgspec.field(name="max_topic_size")
    replication_factor: int
    messages_count: int
    partitions_count: int

    @classmethod
    def of(cls, value: Value) -> Topic:
        return cls(**_topic_fields(value))


class StreamDetails(Stream, frozen=True):
    topics: Sequence[Topic]

    @classmethod
    def of(cls, value: Value) -> StreamDetails:
        return cls(**_stream_fields(value["stream"]), topics=[Topic.of(each) for each in value["topics"]])


class Partition(msgspec.Struct, frozen=True):
    id: int
    created_at_us: int = msgspec.field(name="created_at")
    segments_count: int
    current_offset: int
    size: str
    messages_count: int

    @classmethod
    def of(cls, value: Value) -> Partition:
        return cls(
            value["id"],
            value["created_at_us"],
            value["segments_count"],
            value["current_offset"],
            size_text(value["size_bytes"]),
            value["messages_count"],
        )


class TopicDetails(Topic, frozen=True):
    partitions: Sequence[Partition]

    @classmethod
    def of(cls, value: Value) -> TopicDetails:
        partitions = [Partition.of(each) for each in value["partitions"]]
        return cls(**_topic_fields(value["topic"]), partitions=partitions)


class StreamName(msgspec.Struct, frozen=True):
    name: str


class TopicUpdate(msgspec.Struct, frozen=True):
    """What is absent stays. `message_expiry` in microseconds, `max_topic_size` in bytes; 0: the server's default,
    2^64-1: no end."""

    name: str
    compression: CompressionName | UnsetType = msgspec.field(name="compression_algorithm", default=UNSET)
    message_expiry_us: U64 | UnsetType = msgspec.field(name="message_expiry", default=UNSET)
    max_topic_size_bytes: U64 | UnsetType = msgspec.field(name="max_topic_size", default=UNSET)
    replication_factor: U8 | None = None

    def fields(self) -> dict[str, Any]:
        """As the services call them. `INVALID_REPLICATION_FACTOR`."""
        if self.replication_factor == 0:
            raise ShardError(Status.INVALID_REPLICATION_FACTOR)
        said = {
            "name": self.name,
            "compression": UNSET if self.compression is UNSET else COMPRESSION[self.compression],
            "message_expiry_us": self.message_expiry_us,
            "max_topic_size_bytes": self.max_topic_size_bytes,
            "replication_factor": UNSET if self.replication_factor is None else self.replication_factor,
        }
        return {name: value for name, value in said.items() if value is not UNSET}


class NewTopic(TopicUpdate, frozen=True, kw_only=True):
    """What is absent gets its default."""

    partitions_count: U32

    def fields(self) -> dict[str, Any]:
        defaults = {
            "compression": COMPRESSION["none"],
            "message_expiry_us": 0,
            "max_topic_size_bytes": 0,
            "replication_factor": 1,
        }
        return {**defaults, **TopicUpdate.fields(self), "partitions_count": self.partitions_count}


class PartitionsCount(msgspec.Struct, frozen=True):
    partitions_count: U32


class SegmentsCount(msgspec.Struct, frozen=True):
    segments_count: U32


class Group(msgspec.Struct, frozen=True):
    id: int
    name: str
    partitions_count: int
    members_count: int

    @classmethod
    def of(cls, value: Value) -> Group:
        return cls(value["id"], value["name"], value["partitions_count"], value["members_count"])


class GroupMember(msgspec.Struct, frozen=True):
    id: int
    partitions_count: int
    partitions: Sequence[int]


class GroupDetails(Group, frozen=True):
    members: Sequence[GroupMember] = ()

    @classmethod
    def of(cls, value: Value) -> GroupDetails:
        members = [GroupMember(each["id"], len(each["partitions"]), each["partitions"]) for each in value["members"]]
        group = value["group"]
        return cls(group["id"], group["name"], group["partitions_count"], group["members_count"], members)


class Offset(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    stored_offset: int


class NewOffset(msgspec.Struct, frozen=True):
    """`consumer_id`: a number or a name."""

    consumer_id: int | str
    offset: U64
    partition_id: U32 | None = None


class OffsetQuery(msgspec.Struct, frozen=True):
    consumer_id: str = "1"
    partition_id: U32 | None = None


class PartitionQuery(msgspec.Struct, frozen=True):
    partition_id: U32 | None = None


def _stream_fields(value: Value) -> dict[str, Any]:
    return {
        "id": value["id"],
        "created_at_us": value["created_at_us"],
        "name": value["name"],
        "size": size_text(value["size_bytes"]),
        "messages_count": value["messages_count"],
        "topics_count": value["topics_count"],
    }


def _topic_fields(value: Value) -> dict[str, Any]:
    return {
        "id": value["id"],
        "created_at_us": value["created_at_us"],
        "name": value["name"],
        "size": size_text(value["size_bytes"]),
        "message_expiry_us": value["message_expiry_us"],
        "compression": _COMPRESSION_NAMES.get(value["compression"], "none"),
        "max_topic_size_bytes": value["max_topic_size_bytes"],
        "replication_factor": value["replication_factor"],
        "messages_count": value["messages_count"],
        "partitions_count": value["partitions_count"],
    }
