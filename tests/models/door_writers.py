"""Writers into a topic of a real server. Each says what became of every message, as far as that is told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import re
import struct
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import nats
import nats.errors

from shardd.client import SyncProducer
from shardd.client.errors import ClientError, Fate
from shardd.client.messages import encode_headers
from tests.doors.liftbridge_server import EndedError
from tests.doors.nats_peers import envelope, next_ack
from tests.models.door_readers import CUT_STATUSES, NO_CONNECTION
from tests.models.history import demand
from tests.models.served import NAMESPACE, NATIVE, WAIT_S, Site

STORED: Final = "stored"
NOT_STORED: Final = "not stored"
UNKNOWN: Final = "unknown"
_BEFORE: Final = re.compile(r"; (\d+) messages before are stored(?:, of (\d+) more it is not known)?")
_SERVER_ERROR: Final = 500
_NO_LOGIN: Final = ("no login: the connection was lost", "cannot connect to")
_NO_BASE64: Final = b'{"payload_base64": "-_+/"}'


class Writer:
    """`stream`: where its topics are. `repeats`: it sends again what may have been stored when its connection was cut,
    so that may be stored twice."""

    stream: ClassVar[str] = NATIVE
    repeats: ClassVar[bool] = False

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.changed: set[int] = set()  # partitions that something has happened to since a message was stored there
        self._before = self._begun = site.ways.troubles

    @staticmethod
    def coded(payload: bytes) -> bytes:
        """As it is on the wire."""
        return payload

    def begin(self) -> None:
        """A write."""
        self._before, self._begun = self._begun, self.site.ways.troubles

    def is_cut(self) -> bool:
        """Whether connections were cut since the write before: it may have left one that the cut had not reached."""
        return self.site.in_trouble(self._before)

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        """What became of each. `is_there`: whether the topic has the partition."""
        raise NotImplementedError

    def leave(self, partition: int, payloads: Sequence[bytes]) -> list[str]:
        """It writes and does not wait for the end, or is stopped by what it finds between the messages."""
        return self.write(partition, payloads, {}, is_there=True)

    def close(self) -> None:
        """It writes no more."""


class HttpWriter(Writer):
    """It sends nothing again."""

    @staticmethod
    def coded(payload: bytes) -> bytes:
        return base64.b64encode(payload)

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        self.begin()
        until = time.monotonic() + WAIT_S
        try:
            with self.site.http() as client:
                answer = client.post(self._path, self._body(partition, payloads, headers))
                while is_there and answer.status == 404 and time.monotonic() < until:
                    # the door may not know yet that the topic was made anew
                    answer = client.post(self._path, self._body(partition, payloads, headers))
        except (OSError, http.client.HTTPException) as error:
            demand(self.is_cut(), f"a send ends with {error!r}")
            return [UNKNOWN] * len(payloads)
        if answer.status >= _SERVER_ERROR and self.is_cut():
            return [UNKNOWN] * len(payloads)
        demand((answer.status == 201) == is_there, f"a send gets {answer}")
        return [STORED if answer.status == 201 else NOT_STORED] * len(payloads)

    def leave(self, partition: int, payloads: Sequence[bytes]) -> list[str]:
        body = json.dumps(self._body(partition, payloads, {}))
        head = f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.site.token}\r\n"
        with contextlib.suppress(OSError), self.site.connect_http() as connection:
            connection.sendall(
                f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
        return [UNKNOWN] * len(payloads)

    @property
    def _path(self) -> str:
        return f"/streams/{self.stream}/topics/{self.name}/messages"

    def _body(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str]) -> dict[str, Any]:
        block = {"user_headers": _text(encode_headers(headers))} if headers else {}
        return {
            "partitioning": {"kind": "partition_id", "value": _text(struct.pack("<I", partition))},
            "messages": [{"payload": _text(each), **block} for each in payloads],
        }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class CommandWriter(Writer):
    """`shardd produce`. What stops it is a line that cannot be stored, behind half of the messages; or a cut before its
    first connection is there."""

    repeats = True

    def _is_refused(self, status: int, sentence: str) -> bool:
        return status == NO_CONNECTION and self.is_cut() and any(each in sentence for each in _NO_LOGIN)

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        self.begin()
        status, sentence = self._produce([self._line(partition, each, headers) for each in payloads])
        if self._is_refused(status, sentence):
            return [NOT_STORED] * len(payloads)
        demand((status == 0) == is_there, f"produce ends with {status}: {sentence}")
        return [STORED] * len(payloads) if status == 0 else self._ends(sentence, len(payloads))

    def leave(self, partition: int, payloads: Sequence[bytes]) -> list[str]:
        self.begin()
        lines = [self._line(partition, each, {}) for each in payloads]
        status, sentence = self._produce([*lines[: len(lines) // 2], _NO_BASE64, *lines[len(lines) // 2 :]])
        if self._is_refused(status, sentence):
            return [NOT_STORED] * len(payloads)
        demand(status == 2 and "line" in sentence, f"produce ends with {status}: {sentence}")
        return self._ends(sentence, len(payloads))

    def _produce(self, lines: Sequence[bytes]) -> tuple[int, str]:
        said = b"".join(each + b"\n" for each in lines)
        words = "produce", "--json", self.stream, self.name
        done = self.site.commands.run(*words, given=said, timeout_s=WAIT_S)
        return done.status, done.stderr.decode()

    @staticmethod
    def _line(partition: int, payload: bytes, headers: dict[str, str]) -> bytes:
        said: dict[str, Any] = {"payload_base64": _text(payload), "partition": partition}
        return json.dumps({**said, "headers": headers} if headers else said).encode()

    def _ends(self, sentence: str, count: int) -> list[str]:
        found = _BEFORE.search(sentence)
        stored, unknown = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
        return [STORED] * stored + [UNKNOWN] * unknown + [NOT_STORED] * (count - stored - unknown)


class ProducerWriter(Writer):
    """An idempotent producer that goes on for ever, over all cuts. The history of a partition ends with what the server
    knows of its producers: of a message behind that whose answer is lost nobody can tell whether it was stored."""

    delivery: ClassVar[str] = "idempotent"

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site, name)
        self._producer = SyncProducer(site.cut_client, self.stream, name, delivery=self.delivery, deadline_s=WAIT_S)

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        self.begin()
        futures = [self._producer.send(each, partition=partition, headers=headers) for each in payloads]
        ends = []
        for each in futures:
            try:
                each.result(2 * WAIT_S)
                ends.append(STORED)
            except ClientError as error:
                ends.append(NOT_STORED if error.fate is Fate.NOT_SENT else UNKNOWN)
        if is_there and partition in self.changed and self.is_cut():
            demand(NOT_STORED not in ends, f"the producer says {ends}")
            return ends
        demand(is_there == (set(ends) == {STORED}), f"the producer says {ends}")
        self.changed.discard(partition)
        return ends

    def close(self) -> None:
        self._producer.close()


class LiftbridgeWriter(Writer):
    """Publishes with an ack of the leader."""

    stream = NAMESPACE

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        self.begin()
        coded = {name: value.encode() for name, value in headers.items()}
        ends = []
        for each in payloads:
            try:
                self.site.cut_liftbridge.publish(self.name, each, partition=partition, headers=coded, ackPolicy=0)
                ends.append(STORED)
            except EndedError as error:
                is_unknown = self.is_cut() and error.status[0] in CUT_STATUSES
                demand(is_unknown or error.status[0] == "NOT_FOUND", f"a publish ends with {error.status}")
                ends.append(UNKNOWN if is_unknown else NOT_STORED)
        demand((NOT_STORED if is_there else STORED) not in ends, f"Liftbridge says {ends}")
        return ends


class NatsWriter(Writer):
    """Publishes over NATS. An ack tells that a message is stored; nothing tells that it is not."""

    stream = NAMESPACE
    _client: Any = None
    _connections = 0

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site, name)
        self._runner = asyncio.Runner()
        self._runner.run(self._connect())

    async def _connect(self) -> None:
        """The acks of each connection have a subject of their own: an earlier one may have left some."""
        until = time.monotonic() + WAIT_S
        self._connections += 1
        self._inbox = f"acks.{self.name}.{self._connections}"
        url = f"nats://{self.site.address('nats')}"
        while True:
            try:
                self._client = await nats.connect(url, allow_reconnect=False, connect_timeout=60, error_cb=_unheard)
                self._acks = await self._client.subscribe(self._inbox)
                return
            except (nats.errors.Error, OSError) as error:
                demand(self.is_cut() and time.monotonic() < until, f"no connection for NATS: {error!r}")
                await asyncio.sleep(0.02)

    async def _disconnect(self) -> None:
        """The client raises at the end of a connection that is lost."""
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.close()

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        self.begin()
        return self._runner.run(self._written(partition, payloads, headers, is_there=is_there))

    async def _written(
        self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool
    ) -> list[str]:
        ends: list[str] = []
        try:
            if self._client.is_closed:
                await self._connect()
            await self._publish(partition, payloads, headers)
            if not is_there:
                await self._client.flush(60)
            while is_there and len(ends) < len(payloads):
                ack = await next_ack(self._acks)
                demand(ack.correlationId == str(len(ends)), f"the ack of {ack.correlationId} comes behind {len(ends)}")
                ends.append(NOT_STORED if ack.ackError else STORED)
        except (nats.errors.Error, OSError) as error:
            demand(self.is_cut(), f"a publish ends with {error!r}")
            await self._disconnect()
        return ends + [UNKNOWN] * (len(payloads) - len(ends))

    async def _publish(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str]) -> None:
        subject = f"{self.name}.{partition}" if partition else self.name
        coded = {name: value.encode() for name, value in headers.items()}
        for number, each in enumerate(payloads):
            said = envelope(each, self._inbox, correlationId=str(number), headers=coded)
            await self._client.publish(subject, said)

    def leave(self, partition: int, payloads: Sequence[bytes]) -> list[str]:
        """What a client has sent before it leaves is stored, and not acked."""
        self.begin()

        async def go() -> None:
            if self._client.is_closed:
                await self._connect()
            with contextlib.suppress(nats.errors.Error, OSError):
                for each in payloads:
                    await self._client.publish(f"{self.name}.{partition}" if partition else self.name, envelope(each))
            await self._disconnect()
            await self._connect()

        self._runner.run(go())
        return [UNKNOWN] * len(payloads)

    def close(self) -> None:
        self._runner.run(self._disconnect())
        self._runner.close()


async def _unheard(_: Exception) -> None:
    """The client would write it into the log; a write that it concerns ends with it."""
