"""What happens to a topic of a real server, as rules of a state machine; `topic` is its history as it really was."""

from __future__ import annotations

import itertools
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from shardd.client import SyncClient, commands
from shardd.client.messages import encode_headers
from tests.doors.http_server import HOST, HTTP, HttpClient
from tests.doors.liftbridge_server import EndedError, LiftbridgeClient, LiftbridgeServer
from tests.models.commands import Commands
from tests.models.history import TopicHistory
from tests.support import wire
from tests.support.doors import serving_door

NAMESPACE: Final = "liftbridge-default"
NATIVE: Final = "native"
PARTITIONS_MAX: Final = 2
KEY_BYTES: Final = 8  # of a payload, which say the message
PARTITIONS: Final = st.integers(1, PARTITIONS_MAX)
NUMBER: Final = st.integers(0, PARTITIONS_MAX - 1)
REFILL: Final = st.integers(0, 9)
WAIT_S: Final = 60.0
_FAT_BYTES: Final = 600_000  # two of them fill a segment
_NAMES: Final = itertools.count()
NATS: Final = {
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": f"{HOST}:0",
}


class ServedDoors(LiftbridgeServer):
    """With the door for HTTP and for publishers of NATS, too; their addresses are known when it has started."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, {**HTTP, **NATS})
        self.http_address = (HOST, 0)
        self.nats_url = ""

    def connect_http(self) -> socket.socket:
        return socket.create_connection(self.http_address, timeout=WAIT_S)

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        written = tomllib.loads(self.runtime_config.read_text())
        host, _, port = written["http"]["address"].rpartition(":")
        self.http_address = host, int(port)
        self.nats_url = f"nats://{written['liftbridge']['nats_server']['address']}"
        serving_door(self, "http", 0)


class Site:
    """A server that runs, and those who change its topics. A context manager would hide its parts: `close`."""

    token = ""

    def __init__(self, server: ServedDoors) -> None:
        self.server = server
        self.url = f"shardd://iggy:iggy@{server.address}?connect_timeout=60&deadline=60"
        self.tcp = wire.connect(server.address)
        self.client = SyncClient(self.url)
        with self.http() as http:
            said = http.done("POST", "/users/login", {"username": "iggy", "password": "iggy"})
        self.client.create_stream(NATIVE)
        self.token = said["access_token"]["token"]
        self.liftbridge: LiftbridgeClient = server.client()
        self.commands = Commands(self.url)

    @contextmanager
    def http(self) -> Iterator[HttpClient]:
        """A connection of its own: the door closes one that has been idle for long."""
        client = HttpClient(self.server.http_address, self.token)
        yield client
        client.close()

    def close(self) -> None:
        self.commands.close()
        self.tcp.close()
        self.client.close()
        self.liftbridge.channel.close()


class Row(NamedTuple):
    """A message as a reader gives it. `headers`: by name, as text."""

    payload: bytes
    headers: dict[str, str]
    timestamp_us: int


class ServedWorld(RuleBasedStateMachine):
    """One topic. `site` is set by a subclass; `open` makes the topic. `stream`: where Liftbridge has its streams, or
    that of topics that only the server's own clients know."""

    site: ClassVar[Site]
    stream: ClassVar[str] = NAMESPACE

    def __init__(self) -> None:
        super().__init__()
        self.serial = 0
        self.sent: dict[bytes, tuple[bytes, dict[str, str]]] = {}  # by key: payload and headers
        self.name = f"t{next(_NAMES)}"

    def open(self, partitions: int) -> None:
        self.topic = TopicHistory(partitions)
        self._make(partitions)

    def _make(self, partitions: int) -> None:
        """Liftbridge takes a stream that it is told of; it hears of a deletion a moment later."""
        until = time.monotonic() + WAIT_S
        is_made = self.stream == NATIVE
        if is_made:
            self.site.client.create_topic(NATIVE, self.name, partitions)
        while not is_made:
            try:
                self.site.liftbridge.create(self.name, partitions)
                is_made = True
            except EndedError as error:
                assert error.status[0] == "ALREADY_EXISTS" and time.monotonic() < until, error
        self.site.client.call(commands.set_topic_settings(self.stream, self.name, {"segment_size": "1 MiB"}))

    def made(self, count: int, tail: bytes = b"", header: str = "") -> list[bytes]:
        """Payloads that there was none of before."""
        headers = {"h": header} if header else {}
        payloads = [b"%0*d" % (KEY_BYTES, self.serial + number) + tail for number in range(count)]
        self.serial += count
        self.sent |= {each[:KEY_BYTES]: (each, headers) for each in payloads}
        return payloads

    def send_messages(self, partition: int, payloads: list[bytes], header: str = "") -> None:
        """In one request."""
        block = encode_headers({"h": header} if header else {})
        messages = [wire.message(each, block) for each in payloads]
        self.site.tcp.send(self.stream, self.name, wire.to_partition(partition), messages)

    def append(self, partition: int, count: int, tail: bytes = b"", header: str = "") -> None:
        if payloads := self.made(count, tail, header):
            self.topic.append(partition, [each[:KEY_BYTES] for each in payloads])
            self.send_messages(partition, payloads, header)

    def settle(self) -> None:
        """Before something happens to the topic: `topic` is what the server has."""

    def _partition(self, number: int) -> int:
        return number % len(self.topic.partitions)

    # ---- what happens ----

    @rule(number=NUMBER, count=st.integers(1, 9), tail=st.binary(max_size=20), header=st.text("aé", max_size=3))
    def send(self, number: int, count: int, tail: bytes, header: str) -> None:
        self.append(self._partition(number), count, tail, header)

    @rule(refill=REFILL)
    def purge(self, refill: int) -> None:
        self.settle()
        self.topic.purge()
        self.site.tcp.purge_topic(self.stream, self.name)
        self._fill(refill)

    @rule(partitions=PARTITIONS, refill=REFILL)
    def recreate(self, partitions: int, refill: int) -> None:
        self.settle()
        self.topic.recreate(partitions)
        self.site.client.delete_topic(self.stream, self.name)
        self._make(partitions)
        self._fill(refill)

    @rule(number=NUMBER, segments=st.integers(1, 2))
    def retain(self, number: int, segments: int) -> None:
        """The oldest segments go, as retention takes them."""
        partition = self._partition(number)
        for _ in range(2 * segments):
            self.append(partition, 1, bytes(_FAT_BYTES))
        self.settle()
        self.site.client.delete_segments(self.stream, self.name, partition, segments)
        [bounds] = self.bounds(partition)
        assert bounds.end >= self.topic.partitions[partition].end
        self.unread(partition, bounds.first)
        self.topic.retain(partition, bounds.first)

    def unread(self, partition: int, first: int) -> None:
        """What was stored behind `settle` may have come into a full segment, and have gone with it."""

    @precondition(lambda self: self.stream == NATIVE)
    @rule(partitions=PARTITIONS, refill=REFILL)
    def resize(self, partitions: int, refill: int) -> None:
        """Partitions are added or deleted at the end."""
        self.settle()
        change = partitions - len(self.topic.partitions)
        if change > 0:
            self.topic.add(change)
            self.site.client.create_partitions(NATIVE, self.name, change)
        elif change < 0:
            self.topic.remove(-change)
            self.site.client.delete_partitions(NATIVE, self.name, -change)
        self._fill(refill)

    def drop(self) -> None:
        self.site.client.delete_topic(self.stream, self.name)

    def bounds(self, *partitions: int) -> Any:
        return self.site.client.bounds(self.stream, self.name, partitions).partitions

    def _fill(self, count: int) -> None:
        for each in self.topic.partitions:
            self.append(each.partition, count)
