"""What happens to a topic of a real server, as rules of a state machine; `topic` is its history as it really was."""

from __future__ import annotations

import itertools
import socket
import time
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
from tests.models.ways import CUTS, Cut, Snare, Ways
from tests.support import wire
from tests.support.doors import serving_door
from tests.support.ports import free_port

NAMESPACE: Final = "liftbridge-default"
NATIVE: Final = "native"
PARTITIONS_MAX: Final = 2
KEY_BYTES: Final = 8  # of a payload, which say the message
PARTITIONS: Final = st.integers(1, PARTITIONS_MAX)
NUMBER: Final = st.integers(0, PARTITIONS_MAX - 1)
REFILL: Final = st.integers(0, 9)
RESTART_TURNS: Final = 6  # one of so many restarts is one: each costs a second
ANSWER_BYTES: Final = st.sampled_from([1, 150, 700, 4000])
WAIT_S: Final = 60.0
_FAT_BYTES: Final = 600_000  # two of them fill a segment
_NAMES: Final = itertools.count()
ADDRESSES: Final = {
    "tcp": "SHARDD_TCP_ADDRESS",
    "http": "SHARDD_HTTP_ADDRESS",
    "liftbridge": "SHARDD_LIFTBRIDGE_ADDRESS",
    "nats": "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS",
}


class ServedDoors(LiftbridgeServer):
    """With the door for HTTP and for publishers of NATS, too. `ports`: by name; a restart keeps them."""

    def __init__(self, data: Path) -> None:
        self.ports = {name: free_port() for name in ADDRESSES}
        addresses = {variable: f"{HOST}:{self.ports[name]}" for name, variable in ADDRESSES.items()}
        super().__init__(data, {**HTTP, "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true", **addresses})

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        serving_door(self, "http", 0)


class Site:
    """A server that runs, and the clients that change its topics. `ways`: to the connections that can be cut, with
    `url`, `cut_client`, `cut_liftbridge`, `commands` and `http` over them; `tcp`, `client` and `liftbridge` are never
    cut, and are made anew by `restart`. A context manager would hide its parts: `close`."""

    token = ""
    is_restarting = False

    def __init__(self, server: ServedDoors) -> None:
        self.server = server
        self.ways = Ways({name: (HOST, port) for name, port in server.ports.items()})
        self.url = f"shardd://iggy:iggy@{self.address('tcp')}?connect_timeout=60&deadline=60"
        self.cut_client = SyncClient(f"{self.url}&request_timeout=1")
        self.cut_liftbridge = LiftbridgeClient(self.address("liftbridge"))
        self.commands = Commands(self.url)
        with self.http() as http:
            said = http.done("POST", "/users/login", {"username": "iggy", "password": "iggy"})
        self.token = said["access_token"]["token"]
        self._connect()
        self.client.create_stream(NATIVE)

    def _connect(self) -> None:
        self.tcp = wire.connect(self.server.address)
        self.client = SyncClient(f"shardd://iggy:iggy@{self.server.address}?connect_timeout=60&deadline=60")
        self.liftbridge: LiftbridgeClient = self.server.client()

    def address(self, name: str) -> str:
        """Of a way: host and port."""
        host, port = self.ways.address(name)
        return f"{host}:{port}"

    @contextmanager
    def http(self) -> Iterator[HttpClient]:
        """A connection of its own: the door closes one that has been idle for long."""
        client = HttpClient(self.ways.address("http"), self.token)
        try:
            yield client
        finally:
            client.close()

    def connect_http(self) -> socket.socket:
        return socket.create_connection(self.ways.address("http"), timeout=WAIT_S)

    def restart(self, *, kills: bool) -> None:
        """On the same directory, at the same addresses. `kills`: the supervisor; all others follow by themselves."""
        self._disconnect()
        self.is_restarting = True
        if kills:
            self.server.kill_supervisor()
        else:
            self.server.stop()
        self.server.start()
        self.ways.trouble()
        self.is_restarting = False
        self._connect()

    def in_trouble(self, troubles: int) -> bool:
        """Whether connections were cut, or are, since there were so many `troubles` of the ways."""
        return self.ways.troubles > troubles or self.is_restarting

    def _disconnect(self) -> None:
        self.tcp.close()
        self.client.close()
        self.liftbridge.channel.close()

    def close(self) -> None:
        self.commands.close()
        self._disconnect()
        self.cut_client.close()
        self.cut_liftbridge.channel.close()
        self.ways.close()


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
        self.has_restarted = False

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
        self.site.ways.clear()
        self.site.client.delete_topic(self.stream, self.name)

    def bounds(self, *partitions: int) -> Any:
        return self.site.client.bounds(self.stream, self.name, partitions).partitions

    def _fill(self, count: int) -> None:
        for each in self.topic.partitions:
            self.append(each.partition, count)

    # ---- what happens to connections ----

    @rule(cut=CUTS)
    def cut(self, cut: Cut) -> None:
        """Those of all readers and writers."""
        self.site.ways.cut(cut)

    @rule(cut=CUTS, answer_bytes=ANSWER_BYTES)
    def cut_answers(self, cut: Cut, answer_bytes: int) -> None:
        """Those of all readers and writers, when so many bytes more have come."""
        self.site.ways.lay(Snare(cut, answer_bytes=answer_bytes))

    @precondition(lambda self: not self.has_restarted)
    @rule(turn=st.integers(1, RESTART_TURNS), kills=st.booleans())
    def restart(self, turn: int, kills: bool) -> None:
        """Seldom, and once in a history."""
        if turn == RESTART_TURNS:
            self.has_restarted = True
            self.site.restart(kills=kills)
