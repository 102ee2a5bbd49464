"""A real server with its door for Liftbridge, and a blocking client that shares only the tables of messages with it."""

from __future__ import annotations

import base64
import contextlib
import os
import threading
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # tests start processes
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc
import psutil

from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.liftbridge import api, api_messages
from shardd.protocol.permissions import Permissions, StreamPermissions
from tests.support import wire
from tests.support.doors import serving_door
from tests.support.server import Server

HOST: Final = "127.0.0.1"
WAIT_S: Final = 60.0
QUIET_S: Final = 0.4  # a subscription that says nothing for so long waits
ANONYMOUS: Final = "liftbridge"
LIFTBRIDGE: Final = {
    "SHARDD_LIFTBRIDGE_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_ADDRESS": f"{HOST}:0",
    "SHARDD_LIFTBRIDGE_ANONYMOUS_USER": ANONYMOUS,
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}
ROOT: Final = ("authorization", "Basic " + base64.b64encode(b"iggy:iggy").decode())
Metadata = Sequence[tuple[str, str]]
Ended = tuple[str, str]
"""Name of a status, and its text."""


class LiftbridgeServer(Server):
    """`liftbridge_address` is known when it has started. The anonymous user may do everything with streams."""

    def __init__(self, data: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(data, {**LIFTBRIDGE, **(env or {})})
        self.liftbridge_address = ""

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        self.liftbridge_address = tomllib.loads(self.runtime_config.read_text())["liftbridge"]["address"]
        with contextlib.suppress(wire.StatusError):  # it is there already
            self.create_user(ANONYMOUS, Permissions(manage_streams=True, send_messages=True, poll_messages=True))
        self.door()

    def create_user(self, name: str, permissions: Permissions) -> None:
        """Its password is `secret`."""
        with wire.connect(self.address) as root:
            root.request(33, CreateUserRequest(name, "secret", 1, permissions).encode())

    def door(self, other_than: int = 0) -> psutil.Process:
        """The process of the door when it serves; waits for it."""
        return serving_door(self, "liftbridge", other_than)

    def client(self, *metadata: tuple[str, str], credentials: Any = None) -> LiftbridgeClient:
        return LiftbridgeClient(self.liftbridge_address, metadata, credentials)

    def logged_in(self, name: str, password: str = "secret") -> LiftbridgeClient:
        return self.client(("authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()))


class EndedError(Exception):
    """`status`: name and text."""

    def __init__(self, status: Ended) -> None:
        super().__init__(*status)
        self.status = status


class LiftbridgeClient:
    """One channel; a context manager."""

    def __init__(self, address: str, metadata: Metadata = (), credentials: Any = None) -> None:
        self.address = address
        self.metadata = metadata
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel: Any
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def call(self, method: str, *, timeout_s: float | None = WAIT_S, raw: bytes | None = None, **fields: Any) -> Any:
        """The response. EndedError. `raw`: a request as it is. Requests wait for the server."""
        request = (
            api_messages.message_class(api.request_of(method))(**fields).SerializeToString() if raw is None else raw
        )
        try:
            response = self.channel.unary_unary(f"/{api.SERVICE}/{method}")(
                request, timeout=timeout_s, metadata=self.metadata, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise EndedError(ended(error)) from None
        return api_messages.message_class(api.response_of(method)).FromString(response)

    def status(self, method: str, **fields: Any) -> Ended:
        """What a call ends with; ("OK", "") when it succeeds."""
        try:
            self.call(method, **fields)
        except EndedError as error:
            return error.status
        return "OK", ""

    def create(self, name: str, partitions: int = 1, subject: str = "", **fields: Any) -> None:
        self.call("CreateStream", name=name, subject=subject or name, partitions=partitions, **fields)

    def publish(self, stream: str, value: bytes = b"", **fields: Any) -> Any:
        """The ack."""
        return self.call("Publish", stream=stream, value=value, **fields).ack

    def partition(self, stream: str, partition: int = 0) -> Any:
        return self.call("FetchPartitionMetadata", stream=stream, partition=partition).metadata

    def subscribe(self, stream: str, partition: int = 0, **fields: Any) -> Subscription:
        return Subscription(self, stream=stream, partition=partition, **fields)

    def read(self, stream: str, count: int, partition: int = 0) -> list[Any]:
        """So many messages from the oldest on."""
        with self.subscribe(stream, partition, startPosition=2) as subscription:
            return subscription.messages(count)

    def publish_async(self, requests: Iterable[Mapping[str, Any]]) -> list[Any]:
        """All responses of one session whose client has closed its side. EndedError."""
        kind = api_messages.PublishRequest
        sent = (kind(**each).SerializeToString() for each in requests)
        call = self.channel.stream_stream(f"/{api.SERVICE}/PublishAsync")
        try:
            responses = [*call(sent, timeout=WAIT_S, metadata=self.metadata, wait_for_ready=True)]
        except grpc.RpcError as error:
            raise EndedError(ended(error)) from None
        return [api_messages.PublishResponse.FromString(each) for each in responses]


class Subscription:
    """What comes, in a thread of its own. A context manager; `took_empty`: whether the empty message has come."""

    def __init__(self, client: LiftbridgeClient, **fields: Any) -> None:
        request = api_messages.SubscribeRequest(**fields).SerializeToString()
        self._call = client.channel.unary_stream(f"/{api.SERVICE}/Subscribe")(
            request, metadata=client.metadata, wait_for_ready=True
        )
        self._found: list[Any] = []
        self._ended: Ended | None = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.begun()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()
        self._thread.join(WAIT_S)

    def begun(self) -> bool:
        """Waits for the empty message, or the end instead of it."""
        self._until(lambda: bool(self._found), WAIT_S)
        return bool(self._found) and self._found[0].ByteSize() == 0

    def messages(self, count: int) -> list[Any]:
        """Waits for so many behind the empty one; EndedError when it ends before."""
        self._until(lambda: len(self._found) > count, WAIT_S)
        if len(self._found) <= count:
            assert self._ended is not None, f"{len(self._found) - 1} of {count} messages"
            raise EndedError(self._ended)
        return self._found[1 : count + 1]

    def end(self) -> Ended:
        """Waits for it."""
        assert self._until(lambda: False, WAIT_S), "it goes on"
        assert self._ended is not None
        return self._ended

    def told(self) -> list[Any]:
        """As the matrix has it: "E", offsets, then the status that it ended with, or "waits"."""
        ended, seen = False, -1
        while not ended and len(self._found) != seen:
            seen = len(self._found)
            ended = self._until(lambda: False, QUIET_S)
        empty = ["E"] if self._found and self._found[0].ByteSize() == 0 else []
        offsets = [each.offset for each in self._found[len(empty) :]]
        return [*empty, *offsets, self._ended if ended else "waits"]

    def _until(self, there: Any, timeout_s: float) -> bool:
        """Whether it has ended."""
        with self._news:
            self._news.wait_for(lambda: there() or self._ended is not None, timeout_s)
            return self._ended is not None

    def _follow(self) -> None:
        status = ("OK", "")
        try:
            for message in self._call:
                with self._news:
                    self._found.append(api_messages.Message.FromString(message))
                    self._news.notify_all()
        except grpc.RpcError as error:
            status = ended(error)
        with self._news:
            self._ended = status
            self._news.notify_all()


def ended(error: Any) -> Ended:
    return error.code().name, error.details()


def of_stream(stream: int, **rights: Any) -> Permissions:
    """Rights in one native stream."""
    from immutables import Map

    return Permissions(streams=Map({stream: StreamPermissions(**rights)}))
