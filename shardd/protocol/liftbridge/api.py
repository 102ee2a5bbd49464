"""The service `proto.API`: its methods, and what they take and answer (`api_messages.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf import descriptor_pb2

PACKAGE: Final = "proto"
SERVICE: Final = "proto.API"

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


def request_of(method: str) -> str:
    """The name of what a method takes."""
    return _REQUESTS.get(method, f"{method}Request")


def response_of(method: str) -> str:
    """The name of what a method answers, or streams."""
    return _RESPONSES.get(method, f"{method}Response")


def add_service(file: descriptor_pb2.FileDescriptorProto) -> None:
    """To the description of a file."""
    service = file.service.add(name=SERVICE.removeprefix(f"{PACKAGE}."))
    for name in METHODS:
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.{request_of(name)}",
            output_type=f".{PACKAGE}.{response_of(name)}",
            client_streaming=name in CLIENT_STREAMING,
            server_streaming=name in SERVER_STREAMING,
        )
