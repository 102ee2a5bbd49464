"""A real server with a door that speaks NATS, the released nats-server, and what tests ask of both."""

from __future__ import annotations

import base64
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import nats
import nats.errors
from nats.aio.client import Client

from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.envelope import decode_ack, encode_publish
from tests.doors.door_server import HERE, HOST, TWO_SHARDS, DoorServer, JsonWire
from tests.doors.nats_door import NO_NATS, Settings
from tests.support.on_loop import on_loop
from tests.support.ports import free_port
from tests.support.server import Server

NATS_SERVER: Final = Path(sys.executable).with_name("nats-server")
WAIT_S: Final = 60.0
WRITER: Final = "writer"  # the user that NATS clients without a login are, and that of a NATS server
RIGHTS: Final = {"read_streams": True, "read_topics": True, "poll_messages": True, "send_messages": True}
Message: Final = api_messages.Message


class NatsDoor(DoorServer):
    """`url`: where it is a NATS server; `strict_url`: and nobody comes in without a login."""

    def __init__(
        self, data: Path, settings: Settings | None = None, env: Mapping[str, str] | None = None, shards: int = 2
    ) -> None:
        self.nats_port, self.strict_port = free_port(), free_port()
        self.ports = {"json": free_port()}
        text = msgspec.json.encode(settings or Settings()).decode()
        ports = [str(port) for port in (self.ports["json"], self.nats_port, self.strict_port)]
        arguments = ["-m", "tests.doors.nats_door", HOST, *ports, text]
        doors = msgspec.json.encode([{"name": "liftbridge", "command": arguments}]).decode()
        launcher = [sys.executable, str(HERE / "serve_with_doors.py"), doors]
        users = {"SHARDD_LIFTBRIDGE_NATS_USER": WRITER, "SHARDD_LIFTBRIDGE_ANONYMOUS_USER": WRITER}
        Server.__init__(self, data, {**TWO_SHARDS, **users, **(env or {})}, launcher=launcher)

    def start(self, timeout_s: float = WAIT_S) -> None:
        Server.start(self, timeout_s)
        self.door("liftbridge")

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.nats_port}"

    @property
    def strict_url(self) -> str:
        return f"nats://{HOST}:{self.strict_port}"

    def make_writer(self, name: str = WRITER, rights: Mapping[str, object] | None = None) -> None:
        with self.root() as root:
            user = {"username": name, "password": "secret", "status": 1}
            root.ask("create_user", {**user, "permissions": {**RIGHTS} if rights is None else {**rights}})

    def make_stream(
        self, name: str, subject: str = "", partitions: int = 1, group: str = "", **settings: int | bool
    ) -> dict[str, Any]:
        """What the registry says of it, when the door knows it."""
        with self.root() as root:
            request = {"name": name, "subject": subject or name, "group": group, "partitions": partitions}
            root.ask("liftbridge_create_stream", {**request, "settings": settings})
            made: dict[str, Any] = root.ask("liftbridge_list_streams", {"names": [name]})[0]
        wait_until(lambda: name in self.figures()["names"], f"the door does not know {name}")
        return made

    def figures(self) -> dict[str, Any]:
        with self.client() as client:
            figures: dict[str, Any] = client.ask("figures")
            return figures

    def losses(self) -> dict[str, int]:
        with self.client() as client:
            losses: dict[str, int] = client.ask("losses")
            return losses

    def stored(self, stream: Mapping[str, Any], partition: int = 0, offset: int = 0) -> list[dict[str, Any]]:
        """Messages as a native client reads them, from an offset on; payloads are bytes."""
        found: list[dict[str, Any]] = []
        with self.root() as root:
            while True:
                more = polled(root, stream, partition, offset + len(found))
                if not more:
                    return found
                found += more

    def payloads(self, stream: Mapping[str, Any], partition: int = 0) -> list[bytes]:
        return [each["payload"] for each in self.stored(stream, partition)]


def polled(root: JsonWire, stream: Mapping[str, Any], partition: int, offset: int) -> list[dict[str, Any]]:
    request = {
        "consumer": {"kind": 1, "identifier": 1},
        "stream": stream["stream_id"],
        "topic": stream["topic_id"],
        "partition": partition,
        "strategy": 1,
        "value": offset,
        "count": 1_000,
        "auto_commit": False,
    }
    messages: list[dict[str, Any]] = root.ask("poll_messages", request)
    for message in messages:
        message["payload"] = base64.b64decode(message["payload"])
        message["user_headers"] = base64.b64decode(message["user_headers"] or "")
    return messages


class NatsServerProgram:
    """The released nats-server; can be killed and started again on its port."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.port = free_port()
        self._config = directory / "nats.conf"
        self._log = directory / "nats.log"
        self._config.write_text(f"{config}\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        command = [str(NATS_SERVER), "-a", HOST, "-p", str(self.port), "-c", str(self._config), "-l", str(self._log)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until(self._answers, "nats-server does not answer")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(WAIT_S)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "nats-server has ended"
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False


def linked(server: str, **more: str) -> Settings:
    """Settings of a door that is connected to this NATS server."""
    return Settings(nats=msgspec.structs.replace(NO_NATS, servers=(server,), **more))


@contextlib.asynccontextmanager
async def nats_client(url: str, **options: Any) -> AsyncIterator[Client]:
    """nats-py, connected; it does not come back by itself."""
    client = await nats.connect(url, allow_reconnect=False, connect_timeout=30, **options)
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            await client.close()


def envelope(value: bytes, inbox: str = "", **more: Any) -> bytes:
    return encode_publish(Message(value=value, ackInbox=inbox, **more))


async def next_ack(subscription: Any, timeout_s: float = WAIT_S) -> Any:
    ack = decode_ack((await subscription.next_msg(timeout=timeout_s)).data)
    assert ack is not None
    return ack


class Numbers:
    """Messages that say how many there were before, published to these subjects in turn."""

    AT_ONCE: Final = 20

    def __init__(self, url: str, *subjects: str) -> None:
        self.acked: set[bytes] = set()
        self._url, self._subjects = url, subjects
        self._sent = 0

    @on_loop
    async def publish(self, count: int) -> None:
        """Until so many more are acked, however often the connection is lost."""
        enough = len(self.acked) + count
        while len(self.acked) < enough:
            with contextlib.suppress(nats.errors.Error, OSError):
                async with nats_client(self._url) as client:
                    acks = await client.subscribe("_INBOX.acks")
                    while len(self.acked) < enough:
                        await self._publish_some(client)
                        await self._take_acks(acks)

    async def _publish_some(self, client: Client) -> None:
        for _ in range(self.AT_ONCE):
            said = envelope(b"%d" % self._sent, "_INBOX.acks", correlationId=str(self._sent))
            await client.publish(self._subjects[self._sent % len(self._subjects)], said)
            self._sent += 1

    async def _take_acks(self, subscription: Any) -> None:
        """Those that are there, or come soon."""
        with contextlib.suppress(nats.errors.TimeoutError):
            for _ in range(self.AT_ONCE):
                ack = await next_ack(subscription, 0.5)
                if not ack.ackError:
                    self.acked.add(ack.correlationId.encode())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
