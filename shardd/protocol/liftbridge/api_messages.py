"""Messages of `proto.API` as clients of Liftbridge speak it: names, numbers and types of fields, written from the
description of the wire. mypy reads the classes as they stand here. At the end of this module each name stands for the
class that protobuf makes of the declaration, in a pool of their own: a client of Liftbridge in the same process
registers the same names (docs/adr/0080-liftbridge.md)."""

from __future__ import annotations

from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from shardd.protocol.liftbridge import api
from shardd.protocol.liftbridge.api_fields import (
    ApiMessage,
    Headers,
    Int32,
    Int64,
    Messages,
    Numbered,
    Repeated,
    UInt64,
    add_messages,
    field,
)

FILE: Final = "shardd/liftbridge.proto"

ENUMS: Final = {
    "StartPosition": "NEW_ONLY OFFSET EARLIEST LATEST TIMESTAMP",
    "StopPosition": "STOP_ON_CANCEL STOP_OFFSET STOP_LATEST STOP_TIMESTAMP",
    "AckPolicy": "LEADER ALL NONE",
    "PublishAsyncError.Code": "UNKNOWN BAD_REQUEST NOT_FOUND INTERNAL READONLY INCORRECT_OFFSET ENCRYPTION_FAILED"
    " PERMISSION_DENIED",
    "Ack.Error": "OK UNKNOWN INCORRECT_OFFSET TOO_LARGE ENCRYPTION",
    "StreamMetadata.Error": "OK UNKNOWN_STREAM",
    "ConsumerGroupMetadata.Error": "OK UNKNOWN_GROUP",
    "ActivityStreamOp": "CREATE_STREAM DELETE_STREAM PAUSE_STREAM RESUME_STREAM SET_STREAM_READONLY"
    " JOIN_CONSUMER_GROUP LEAVE_CONSUMER_GROUP",
}
"""Values count from 0."""


class NullableInt64(ApiMessage):
    value: Int64 = field(1)


class NullableInt32(ApiMessage):
    value: Int32 = field(1)


class NullableBool(ApiMessage):
    value: bool = field(1)


class CreateStreamRequest(ApiMessage):
    subject: str = field(1)
    name: str = field(2)
    group: str = field(3)
    replicationFactor: Int32 = field(4)
    partitions: Int32 = field(5)
    retentionMaxBytes: NullableInt64 = field(6)
    retentionMaxMessages: NullableInt64 = field(7)
    retentionMaxAge: NullableInt64 = field(8)
    cleanerInterval: NullableInt64 = field(9)
    segmentMaxBytes: NullableInt64 = field(10)
    segmentMaxAge: NullableInt64 = field(11)
    compactMaxGoroutines: NullableInt32 = field(12)
    compactEnabled: NullableBool = field(13)
    autoPauseTime: NullableInt64 = field(14)
    autoPauseDisableIfSubscribers: NullableBool = field(15)
    minIsr: NullableInt32 = field(16)
    optimisticConcurrencyControl: NullableBool = field(17)
    encryption: NullableBool = field(18)


class CreateStreamResponse(ApiMessage):
    pass


class DeleteStreamRequest(ApiMessage):
    name: str = field(1)


class DeleteStreamResponse(ApiMessage):
    pass


class PauseStreamRequest(ApiMessage):
    name: str = field(1)
    partitions: Repeated[Int32] = field(2)
    resumeAll: bool = field(3)


class PauseStreamResponse(ApiMessage):
    pass


class SetStreamReadonlyRequest(ApiMessage):
    name: str = field(1)
    partitions: Repeated[Int32] = field(2)
    readonly: bool = field(3)


class SetStreamReadonlyResponse(ApiMessage):
    pass


class Consumer(ApiMessage):
    groupId: str = field(1)
    groupEpoch: UInt64 = field(2)
    consumerId: str = field(3)


class SubscribeRequest(ApiMessage):
    stream: str = field(1)
    partition: Int32 = field(2)
    startPosition: int = field(3, "StartPosition")
    startOffset: Int64 = field(4)
    startTimestamp: Int64 = field(5)
    readISRReplica: bool = field(6)
    resume: bool = field(7)
    stopPosition: int = field(8, "StopPosition")
    stopOffset: Int64 = field(9)
    stopTimestamp: Int64 = field(10)
    consumer: Consumer = field(11)


class FetchMetadataRequest(ApiMessage):
    streams: Repeated[str] = field(1)
    groups: Repeated[str] = field(2)


class FetchMetadataResponse(ApiMessage):
    brokers: Messages[Broker] = field(1)
    streamMetadata: Messages[StreamMetadata] = field(2)
    groupMetadata: Messages[ConsumerGroupMetadata] = field(3)


class FetchPartitionMetadataRequest(ApiMessage):
    stream: str = field(1)
    partition: Int32 = field(2)


class FetchPartitionMetadataResponse(ApiMessage):
    metadata: PartitionMetadata = field(1)


class PublishRequest(ApiMessage):
    key: bytes = field(1)
    value: bytes = field(2)
    stream: str = field(3)
    partition: Int32 = field(4)
    headers: Headers = field(5)
    ackInbox: str = field(6)
    correlationId: str = field(7)
    ackPolicy: int = field(8, "AckPolicy")
    expectedOffset: Int64 = field(9)


class PublishAsyncError(ApiMessage):
    code: int = field(1, "PublishAsyncError.Code")
    message: str = field(2)


class PublishResponse(ApiMessage):
    ack: Ack = field(1)
    asyncError: PublishAsyncError = field(2)
    correlationId: str = field(3)


class PublishToSubjectRequest(ApiMessage):
    key: bytes = field(1)
    value: bytes = field(2)
    subject: str = field(3)
    headers: Headers = field(4)
    ackInbox: str = field(5)
    correlationId: str = field(6)
    ackPolicy: int = field(7, "AckPolicy")


class PublishToSubjectResponse(ApiMessage):
    ack: Ack = field(1)


class SetCursorRequest(ApiMessage):
    stream: str = field(1)
    partition: Int32 = field(2)
    cursorId: str = field(3)
    offset: Int64 = field(4)


class SetCursorResponse(ApiMessage):
    pass


class FetchCursorRequest(ApiMessage):
    stream: str = field(1)
    partition: Int32 = field(2)
    cursorId: str = field(3)


class FetchCursorResponse(ApiMessage):
    offset: Int64 = field(1)


class JoinConsumerGroupRequest(ApiMessage):
    groupId: str = field(1)
    consumerId: str = field(2)
    streams: Repeated[str] = field(3)


class JoinConsumerGroupResponse(ApiMessage):
    coordinator: str = field(1)
    epoch: UInt64 = field(2)
    consumerTimeout: Int64 = field(3)
    coordinatorTimeout: Int64 = field(4)


class LeaveConsumerGroupRequest(ApiMessage):
    groupId: str = field(1)
    consumerId: str = field(2)


class LeaveConsumerGroupResponse(ApiMessage):
    pass


class FetchConsumerGroupAssignmentsRequest(ApiMessage):
    groupId: str = field(1)
    consumerId: str = field(2)
    epoch: UInt64 = field(3)


class FetchConsumerGroupAssignmentsResponse(ApiMessage):
    epoch: UInt64 = field(1)
    assignments: Messages[PartitionAssignment] = field(2)


class PartitionAssignment(ApiMessage):
    stream: str = field(1)
    partitions: Repeated[Int32] = field(2)


class ReportConsumerGroupCoordinatorRequest(ApiMessage):
    groupId: str = field(1)
    consumerId: str = field(2)
    coordinator: str = field(3)
    epoch: UInt64 = field(4)


class ReportConsumerGroupCoordinatorResponse(ApiMessage):
    pass


class Broker(ApiMessage):
    id: str = field(1)
    host: str = field(2)
    port: Int32 = field(3)
    partitionCount: Int32 = field(4)
    leaderCount: Int32 = field(5)


class StreamMetadata(ApiMessage):
    name: str = field(1)
    subject: str = field(2)
    error: int = field(3, "StreamMetadata.Error")
    partitions: Numbered[PartitionMetadata] = field(4)
    creationTimestamp: Int64 = field(5)


class ConsumerGroupMetadata(ApiMessage):
    groupId: str = field(1)
    error: int = field(2, "ConsumerGroupMetadata.Error")
    coordinator: str = field(3)
    epoch: UInt64 = field(4)


class PartitionMetadata(ApiMessage):
    id: Int32 = field(1)
    leader: str = field(2)
    replicas: Repeated[str] = field(3)
    isr: Repeated[str] = field(4)
    highWatermark: Int64 = field(5)
    newestOffset: Int64 = field(6)
    paused: bool = field(7)
    readonly: bool = field(8)
    messagesReceivedTimestamps: PartitionEventTimestamps = field(9)
    pauseTimestamps: PartitionEventTimestamps = field(10)
    readonlyTimestamps: PartitionEventTimestamps = field(11)


class PartitionEventTimestamps(ApiMessage):
    firstTimestamp: Int64 = field(1)
    latestTimestamp: Int64 = field(2)


class Message(ApiMessage):
    offset: Int64 = field(1)
    key: bytes = field(2)
    value: bytes = field(3)
    timestamp: Int64 = field(4)
    stream: str = field(5)
    partition: Int32 = field(6)
    subject: str = field(7)
    replySubject: str = field(8)
    headers: Headers = field(9)
    ackInbox: str = field(10)
    correlationId: str = field(11)
    ackPolicy: int = field(12, "AckPolicy")


class Ack(ApiMessage):
    stream: str = field(1)
    partitionSubject: str = field(2)
    msgSubject: str = field(3)
    offset: Int64 = field(4)
    ackInbox: str = field(5)
    correlationId: str = field(6)
    ackPolicy: int = field(7, "AckPolicy")
    receptionTimestamp: Int64 = field(8)
    commitTimestamp: Int64 = field(9)
    ackError: int = field(10, "Ack.Error")


class ActivityStreamEvent(ApiMessage):
    id: UInt64 = field(1)
    op: int = field(2, "ActivityStreamOp")
    createStreamOp: CreateStreamOp = field(3)
    deleteStreamOp: DeleteStreamOp = field(4)
    pauseStreamOp: PauseStreamOp = field(5)
    resumeStreamOp: ResumeStreamOp = field(6)
    setStreamReadonlyOp: SetStreamReadonlyOp = field(7)
    joinConsumerGroupOp: JoinConsumerGroupOp = field(8)
    leaveConsumerGroupOp: LeaveConsumerGroupOp = field(9)


class CreateStreamOp(ApiMessage):
    stream: str = field(1)
    partitions: Repeated[Int32] = field(2)


class DeleteStreamOp(ApiMessage):
    stream: str = field(1)


class PauseStreamOp(ApiMessage):
    stream: str = field(1)
    partitions: Repeated[Int32] = field(2)
    resumeAll: bool = field(3)


class ResumeStreamOp(ApiMessage):
    stream: str = field(1)
    partitions: Repeated[Int32] = field(2)


class SetStreamReadonlyOp(ApiMessage):
    stream: str = field(1)
    partitions: Repeated[Int32] = field(2)
    readonly: bool = field(3)


class JoinConsumerGroupOp(ApiMessage):
    groupId: str = field(1)
    consumerId: str = field(2)
    streams: Repeated[str] = field(3)


class LeaveConsumerGroupOp(ApiMessage):
    groupId: str = field(1)
    consumerId: str = field(2)
    expired: bool = field(3)


def message_class(name: str) -> type[message.Message]:
    """The class of a message whose name is known at run time only."""
    return _CLASSES[f"{api.PACKAGE}.{name}"]


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=api.PACKAGE, syntax="proto3")
    add_messages(file, ApiMessage.__subclasses__(), ENUMS)
    api.add_service(file)
    return file


POOL: Final = descriptor_pool.DescriptorPool()
DESCRIPTION: Final = _described().SerializeToString(deterministic=True)
"""The FileDescriptorProto, for reflection."""
POOL.AddSerializedFile(DESCRIPTION)
_CLASSES: Final = message_factory.GetMessageClassesForFiles([FILE], POOL)
globals().update({made.DESCRIPTOR.name: made for made in _CLASSES.values()})
