"""Messages of `proto.API` as clients of Liftbridge speak it: names, numbers and types of fields, written from the
description of the wire. Classes are made of these tables when this module is imported, in a pool of their own: a client
of Liftbridge in the same process registers the same names (docs/adr/0080-liftbridge.md)."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "proto"
SERVICE: Final = "proto.API"
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

_STREAM_SETTINGS: Final = (
    "6 retentionMaxBytes NullableInt64, 7 retentionMaxMessages NullableInt64, 8 retentionMaxAge NullableInt64,"
    " 9 cleanerInterval NullableInt64, 10 segmentMaxBytes NullableInt64, 11 segmentMaxAge NullableInt64,"
    " 12 compactMaxGoroutines NullableInt32, 13 compactEnabled NullableBool, 14 autoPauseTime NullableInt64,"
    " 15 autoPauseDisableIfSubscribers NullableBool, 16 minIsr NullableInt32,"
    " 17 optimisticConcurrencyControl NullableBool, 18 encryption NullableBool"
)
MESSAGES: Final = {
    "NullableInt64": "1 value int64",
    "NullableInt32": "1 value int32",
    "NullableBool": "1 value bool",
    "CreateStreamRequest": "1 subject string, 2 name string, 3 group string, 4 replicationFactor int32,"
    " 5 partitions int32, " + _STREAM_SETTINGS,
    "CreateStreamResponse": "",
    "DeleteStreamRequest": "1 name string",
    "DeleteStreamResponse": "",
    "PauseStreamRequest": "1 name string, 2 partitions int32*, 3 resumeAll bool",
    "PauseStreamResponse": "",
    "SetStreamReadonlyRequest": "1 name string, 2 partitions int32*, 3 readonly bool",
    "SetStreamReadonlyResponse": "",
    "Consumer": "1 groupId string, 2 groupEpoch uint64, 3 consumerId string",
    "SubscribeRequest": "1 stream string, 2 partition int32, 3 startPosition StartPosition, 4 startOffset int64,"
    " 5 startTimestamp int64, 6 readISRReplica bool, 7 resume bool, 8 stopPosition StopPosition, 9 stopOffset int64,"
    " 10 stopTimestamp int64, 11 consumer Consumer",
    "FetchMetadataRequest": "1 streams string*, 2 groups string*",
    "FetchMetadataResponse": "1 brokers Broker*, 2 streamMetadata StreamMetadata*,"
    " 3 groupMetadata ConsumerGroupMetadata*",
    "FetchPartitionMetadataRequest": "1 stream string, 2 partition int32",
    "FetchPartitionMetadataResponse": "1 metadata PartitionMetadata",
    "PublishRequest": "1 key bytes, 2 value bytes, 3 stream string, 4 partition int32, 5 headers map<bytes>,"
    " 6 ackInbox string, 7 correlationId string, 8 ackPolicy AckPolicy, 9 expectedOffset int64",
    "PublishAsyncError": "1 code PublishAsyncError.Code, 2 message string",
    "PublishResponse": "1 ack Ack, 2 asyncError PublishAsyncError, 3 correlationId string",
    "PublishToSubjectRequest": "1 key bytes, 2 value bytes, 3 subject string, 4 headers map<bytes>,"
    " 5 ackInbox string, 6 correlationId string, 7 ackPolicy AckPolicy",
    "PublishToSubjectResponse": "1 ack Ack",
    "SetCursorRequest": "1 stream string, 2 partition int32, 3 cursorId string, 4 offset int64",
    "SetCursorResponse": "",
    "FetchCursorRequest": "1 stream string, 2 partition int32, 3 cursorId string",
    "FetchCursorResponse": "1 offset int64",
    "JoinConsumerGroupRequest": "1 groupId string, 2 consumerId string, 3 streams string*",
    "JoinConsumerGroupResponse": "1 coordinator string, 2 epoch uint64, 3 consumerTimeout int64,"
    " 4 coordinatorTimeout int64",
    "LeaveConsumerGroupRequest": "1 groupId string, 2 consumerId string",
    "LeaveConsumerGroupResponse": "",
    "FetchConsumerGroupAssignmentsRequest": "1 groupId string, 2 consumerId string, 3 epoch uint64",
    "FetchConsumerGroupAssignmentsResponse": "1 epoch uint64, 2 assignments PartitionAssignment*",
    "PartitionAssignment": "1 stream string, 2 partitions int32*",
    "ReportConsumerGroupCoordinatorRequest": "1 groupId string, 2 consumerId string, 3 coordinator string,"
    " 4 epoch uint64",
    "ReportConsumerGroupCoordinatorResponse": "",
    "Broker": "1 id string, 2 host string, 3 port int32, 4 partitionCount int32, 5 leaderCount int32",
    "StreamMetadata": "1 name string, 2 subject string, 3 error StreamMetadata.Error,"
    " 4 partitions imap<PartitionMetadata>, 5 creationTimestamp int64",
    "ConsumerGroupMetadata": "1 groupId string, 2 error ConsumerGroupMetadata.Error, 3 coordinator string,"
    " 4 epoch uint64",
    "PartitionMetadata": "1 id int32, 2 leader string, 3 replicas string*, 4 isr string*, 5 highWatermark int64,"
    " 6 newestOffset int64, 7 paused bool, 8 readonly bool, 9 messagesReceivedTimestamps PartitionEventTimestamps,"
    " 10 pauseTimestamps PartitionEventTimestamps, 11 readonlyTimestamps PartitionEventTimestamps",
    "PartitionEventTimestamps": "1 firstTimestamp int64, 2 latestTimestamp int64",
    "Message": "1 offset int64, 2 key bytes, 3 value bytes, 4 timestamp int64, 5 stream string, 6 partition int32,"
    " 7 subject string, 8 replySubject string, 9 headers map<bytes>, 10 ackInbox string, 11 correlationId string,"
    " 12 ackPolicy AckPolicy",
    "Ack": "1 stream string, 2 partitionSubject string, 3 msgSubject string, 4 offset int64, 5 ackInbox string,"
    " 6 correlationId string, 7 ackPolicy AckPolicy, 8 receptionTimestamp int64, 9 commitTimestamp int64,"
    " 10 ackError Ack.Error",
    "ActivityStreamEvent": "1 id uint64, 2 op ActivityStreamOp, 3 createStreamOp CreateStreamOp,"
    " 4 deleteStreamOp DeleteStreamOp, 5 pauseStreamOp PauseStreamOp, 6 resumeStreamOp ResumeStreamOp,"
    " 7 setStreamReadonlyOp SetStreamReadonlyOp, 8 joinConsumerGroupOp JoinConsumerGroupOp,"
    " 9 leaveConsumerGroupOp LeaveConsumerGroupOp",
    "CreateStreamOp": "1 stream string, 2 partitions int32*",
    "DeleteStreamOp": "1 stream string",
    "PauseStreamOp": "1 stream string, 2 partitions int32*, 3 resumeAll bool",
    "ResumeStreamOp": "1 stream string, 2 partitions int32*",
    "SetStreamReadonlyOp": "1 stream string, 2 partitions int32*, 3 readonly bool",
    "JoinConsumerGroupOp": "1 groupId string, 2 consumerId string, 3 streams string*",
    "LeaveConsumerGroupOp": "1 groupId string, 2 consumerId string, 3 expired bool",
}
"""Fields as "number name type": `*` for a list, `map<T>` from texts, `imap<T>` from int32."""

METHODS: Final = (
    "CreateStream",
    "DeleteStream",
    "PauseStream",
    "SetStreamReadonly",
    "Subscribe",
    "FetchMetadata",
    "FetchPartitionMetadata",
    "Publish",
    "PublishAsync",
    "PublishToSubject",
    "SetCursor",
    "FetchCursor",
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments",
    "ReportConsumerGroupCoordinator",
)
SERVER_STREAMING: Final = frozenset({"Subscribe", "PublishAsync"})
CLIENT_STREAMING: Final = frozenset({"PublishAsync"})
_REQUESTS: Final = {"PublishAsync": "PublishRequest"}
_RESPONSES: Final = {"PublishAsync": "PublishResponse", "Subscribe": "Message"}

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}


def request_of(method: str) -> str:
    """The name of what a method takes."""
    return _REQUESTS.get(method, f"{method}Request")


def response_of(method: str) -> str:
    """The name of what a method answers, or streams."""
    return _RESPONSES.get(method, f"{method}Response")


def message_class(name: str) -> Any:
    """The class of a message: `message_class("Ack")(offset=3)`."""
    return _CLASSES[f"{PACKAGE}.{name}"]


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    messages = {}
    for name, fields in MESSAGES.items():
        messages[name] = message = file.message_type.add(name=name)
        for row in filter(None, fields.split(", ")):
            _add_field(message, row)
    for name, values in ENUMS.items():
        owner, _, own = name.rpartition(".")
        enum = messages[owner].enum_type.add(name=own) if owner else file.enum_type.add(name=own)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    service = file.service.add(name=SERVICE.removeprefix(f"{PACKAGE}."))
    for name in METHODS:
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.{request_of(name)}",
            output_type=f".{PACKAGE}.{response_of(name)}",
            client_streaming=name in CLIENT_STREAMING,
            server_streaming=name in SERVER_STREAMING,
        )
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, row: str) -> None:
    number, name, type_ = row.split()
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if type_.endswith("*"):
        field.label = _Field.LABEL_REPEATED
        type_ = type_[:-1]
    kind, _, inner = type_.removesuffix(">").partition("<")
    if inner:  # a map is a list of entries of a type of its own
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, f"1 key {'int32' if kind == 'imap' else 'string'}")
        _add_field(entry, f"2 value {inner}")
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    elif type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type = _Field.TYPE_ENUM if type_ in ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_}"


POOL: Final = descriptor_pool.DescriptorPool()
DESCRIPTION: Final = _described().SerializeToString(deterministic=True)
"""The FileDescriptorProto, for reflection."""
POOL.AddSerializedFile(DESCRIPTION)
_CLASSES: Final[dict[str, Any]] = message_factory.GetMessageClassesForFiles([FILE], POOL)
