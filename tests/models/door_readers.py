"""Readers of a topic of a real server: each reads until it has all that is there, and its account judges it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import time
from typing import Any, ClassVar, Final

from shardd.client import Message, SyncConsumer, statuses
from shardd.client.commands import stored_offset
from shardd.client.errors import ServerError
from shardd.client.messages import headers_of
from shardd.protocol.errors import Status
from tests.doors.liftbridge_server import EndedError, Subscription
from tests.models.history import Broken, ReaderAccount, TopicHistory, Where, demand
from tests.models.served import KEY_BYTES, WAIT_S, Row, Site
from tests.support import wire

_OF_LIFTBRIDGE: Final = ("subject", "reply")
_EARLIEST: Final = 2
_OFFSET: Final = 1
NO_CONNECTION: Final = 6  # the status of a command
_NO_GROUP: Final = (statuses.GROUP_NOT_FOUND, statuses.MEMBER_NOT_FOUND)
CUT_STATUSES: Final = ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL")


class Reader:
    """`rows`: all that it has handed over."""

    def __init__(self, site: Site, stream: str, name: str, topic: TopicHistory) -> None:
        self.site, self.stream, self.name, self.topic = site, stream, name, topic
        self.account = ReaderAccount(topic, repeats=False)
        self.rows: dict[Where, Row] = {}
        self.made = 0

    def hand(self, partition: int, offset: int, row: Row) -> Where:
        where = self.account.delivered(partition, offset, row.payload[:KEY_BYTES], self.made)
        self.rows[where] = row
        return where

    def missing(self, partition: int) -> bool:
        return self.topic.partitions[partition].number in self.account.missing()

    def read(self) -> None:
        """All that is there."""
        until = time.monotonic() + WAIT_S
        for each in list(self.topic.partitions):
            while self.missing(each.partition):
                demand(time.monotonic() < until, f"{type(self).__name__} never gets {self.account.missing()}")
                self.take(each.partition)

    def take(self, partition: int) -> None:
        """What comes next."""
        raise NotImplementedError

    def anew(self) -> None:
        """It leaves, and comes back with what it knows."""

    def check(self) -> None:
        """Its stored offsets are those of messages that it has handed over."""

    def close(self) -> None:
        self.anew()


class EventReader(Reader):
    """Server-sent events, with `Last-Event-ID` when it comes back; one connection for each partition."""

    def __init__(self, site: Site, stream: str, name: str, topic: TopicHistory) -> None:
        super().__init__(site, stream, name, topic)
        self.ids: dict[int, str] = {}
        self._open: dict[int, tuple[http.client.HTTPConnection, http.client.HTTPResponse]] = {}

    def _connected(self, partition: int) -> http.client.HTTPResponse | None:
        if partition in self._open:
            return self._open[partition][1]
        connection = http.client.HTTPConnection(*self.site.ways.address("http"), timeout=WAIT_S)
        headers = {"Authorization": f"Bearer {self.site.token}"}
        if partition in self.ids:
            headers["Last-Event-ID"] = self.ids[partition]
        path = f"/streams/{self.stream}/topics/{self.name}/events?partition_id={partition}&kind=first"
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):  # it was cut
            connection.close()
            return None
        if answer.status != 200:  # the topic was made anew and the door does not know it yet
            connection.close()
            return None
        self._open[partition] = connection, answer
        return answer

    def take(self, partition: int) -> None:
        answer = self._connected(partition)
        if answer is None:
            return
        event: dict[str, str] = {}
        try:
            while line := answer.readline().decode():
                if line == "\n" and "data" in event:
                    self._took(partition, event)
                    return
                name, _, value = line.removesuffix("\n").partition(": ")
                event[name] = value
        except (OSError, http.client.HTTPException):
            pass
        self.leave(partition)

    def _took(self, partition: int, event: dict[str, str]) -> None:
        self.ids[partition] = event["id"]
        data = json.loads(event["data"])
        if event.get("event") == "reset":
            if data["before"] == data["incarnation"]:
                self.account.lost(partition, data["expected"], data["offset"], self.made)
            else:
                self.account.reset(partition, self.made)
            return
        offset = data["header"]["offset"]
        assert event["id"].endswith(f"-{offset}")
        self.hand(partition, offset, row_of(data))

    def leave(self, partition: int) -> None:
        if partition in self._open:
            connection, answer = self._open.pop(partition)
            answer.close()
            connection.close()

    def anew(self) -> None:
        for partition in list(self._open):
            self.leave(partition)


def row_of(message: Any) -> Row:
    """A message of the door for HTTP."""
    headers = {_text(each["key"]): _text(each["value"]) for each in message.get("user_headers") or []}
    return Row(base64.b64decode(message["payload"]), headers, message["header"]["timestamp"])


def _text(part: dict[str, str]) -> str:
    return base64.b64decode(part["value"]).decode()


class NamedReader(Reader):
    """A consumer by its name. It stores what it has handed over when it leaves."""

    who: ClassVar[dict[str, str]] = {"name": "d"}
    _consumer: SyncConsumer | None = None

    def take(self, partition: int) -> None:
        consumer = self._consumer = self._consumer or self._made()

        async def got() -> list[Message]:
            async with asyncio.timeout(WAIT_S):
                return await consumer._consumer.get_batch()

        try:
            batch = self.site.cut_client.portal.run(got())
        except TimeoutError:
            raise Broken(f"the consumer never gets {self.account.missing()}") from None
        for each in batch:
            headers = {name: str(value) for name, value in headers_of(each.headers).items()}
            self.hand(each.partition, each.offset, Row(each.payload, headers, each.timestamp_us))

    def _made(self) -> SyncConsumer:
        self.made += 1
        made = self.made
        return SyncConsumer(
            self.site.cut_client,
            self.stream,
            self.name,
            **self.who,
            poll_interval_ms=20,
            assignment_interval_ms=100,
            when_reset=lambda reset: self.account.reset(reset.partition, made),
            when_lost=lambda loss: self.account.lost(loss.partition, loss.begin, loss.end, made),
        )

    def anew(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def check(self) -> None:
        is_group, name = "group" in self.who, next(iter(self.who.values()))
        for each in self.topic.partitions:
            asked = stored_offset(name, self.stream, self.name, each.partition, group=is_group)
            try:
                found = self.site.client.call(asked)
            except ServerError as error:
                demand(is_group and error.status in _NO_GROUP, f"the stored offset is answered with {error}")
                continue
            if found is not None:
                self.account.committed(each.partition, each.number, found.stored)


class MemberReader(NamedReader):
    """The member of a group. A cut ends its membership, and what it has not stored comes again."""

    who: ClassVar[dict[str, str]] = {"group": "g"}

    def __init__(self, site: Site, stream: str, name: str, topic: TopicHistory) -> None:
        super().__init__(site, stream, name, topic)
        self.account = ReaderAccount(topic, repeats=True)


class SubscribedReader(Reader):
    """Subscriptions of Liftbridge. Offsets tell: a new history has smaller ones, what retention took leaves a jump.
    It does not leave: the protocol has nothing that says to which history an offset belongs. When its connection is
    cut it comes back behind its last offset; a program that knows that the stream was purged meanwhile at the start."""

    def __init__(self, site: Site, stream: str, name: str, topic: TopicHistory) -> None:
        super().__init__(site, stream, name, topic)
        self._open: dict[int, Subscription] = {}
        self._last: dict[int, Where] = {}
        self._taken: dict[int, int] = {}
        self._troubles: dict[int, int] = {}  # when it was begun
        self._worked = 0  # as many troubles, and the connection worked: one that is dead may be used without notice

    def take(self, partition: int) -> None:
        if partition not in self._open:
            self.made += 1
            begin, troubles = self.begin_at(partition), self.site.ways.troubles
            self._open[partition] = self.site.cut_liftbridge.subscribe(self.name, partition, **begin)
            self._taken[partition] = 0
            self._troubles[partition] = troubles
            self._open[partition].begun()
        try:
            found = self._open[partition].messages(self._taken[partition] + 1)[-1]
        except EndedError as error:
            whole = min(self._worked, self._troubles[partition])
            is_cut = self.site.ways.troubles > whole and error.status[0] in CUT_STATUSES
            demand(is_cut or error.status[0] == "NOT_FOUND", f"a subscription ends with {error.status}")
            self._end(partition)
            if not is_cut:
                self._last.pop(partition, None)
            return
        self._taken[partition] += 1
        self._worked = max(self._worked, self._troubles[partition])
        headers = {name: value.decode() for name, value in found.headers.items() if name not in _OF_LIFTBRIDGE}
        self._tell(partition, found)
        self._last[partition] = self.hand(partition, found.offset, Row(found.value, headers, found.timestamp // 1000))

    def begin_at(self, partition: int) -> dict[str, int]:
        last = self._last.get(partition)
        if last is None or self.topic.history(last.number).has_ended:
            return {"startPosition": _EARLIEST}
        return {"startPosition": _OFFSET, "startOffset": last.offset + 1}

    def _tell(self, partition: int, found: Any) -> None:
        last = self._last.get(partition)
        [where] = self.topic.where.get(found.value[:KEY_BYTES], [None])
        if last is None or where is None:
            return
        if where.number > last.number:
            self.account.reset(partition, self.made)
        elif where.offset > last.offset + 1:
            self.account.lost(partition, last.offset + 1, where.offset, self.made)

    def _end(self, partition: int) -> None:
        self._open.pop(partition).__exit__(None, None, None)

    def close(self) -> None:
        for partition in list(self._open):
            self._end(partition)


class WholeReader(Reader):
    """It keeps no place: it reads all that is kept, each time from the beginning."""

    def read(self) -> None:
        self.account = ReaderAccount(self.topic, repeats=False)
        self.read_whole()
        self.account.check_end()

    def read_whole(self) -> None:
        raise NotImplementedError


class ExportReader(WholeReader):
    """`shardd message export`. It is run again where its first connection was cut before it had written anything."""

    def read_whole(self) -> None:
        troubles = self.site.ways.troubles
        done = self.site.commands.run("message", "export", self.stream, self.name, timeout_s=WAIT_S)
        if done.status == NO_CONNECTION and not done.stdout and self.site.ways.troubles > troubles:
            done = self.site.commands.run("message", "export", self.stream, self.name, timeout_s=WAIT_S)
        demand(done.status == 0, f"export ends with {done.status}: {done.stderr.decode()}")
        for line in done.stdout.splitlines():
            self.hand(*written(line))


class HttpReader(WholeReader):
    """Polls over HTTP. One that is cut is made again."""

    def read_whole(self) -> None:
        for each in self.topic.partitions:
            offset = 0
            while messages := self._poll(each.partition, offset):
                for message in messages:
                    offset = message["header"]["offset"] + 1
                    self.hand(each.partition, offset - 1, row_of(message))

    def _poll(self, partition: int, offset: int) -> list[Any]:
        """The door may not know yet that the topic was made anew."""
        asked = f"consumer_id=7&partition_id={partition}&kind=offset&value={offset}&count=100&auto_commit=false"
        until = time.monotonic() + WAIT_S
        while True:
            troubles = self.site.ways.troubles
            try:
                with self.site.http() as client:
                    answer = client.get(f"/streams/{self.stream}/topics/{self.name}/messages?{asked}")
            except (OSError, http.client.HTTPException) as error:
                demand(self.site.ways.troubles > troubles and time.monotonic() < until, f"a poll ends with {error!r}")
                continue
            if answer.status == 200:
                found: list[Any] = answer.json["messages"]
                return found
            demand(answer.status == 404 and time.monotonic() < until, f"a poll gets {answer}")


class ClassicReader(WholeReader):
    """Polls of a released client, which connects again when it was cut, or told that its server stopped."""

    _wire: wire.Wire | None = None
    _troubles = 0  # when it was connected

    def read_whole(self) -> None:
        for each in self.topic.partitions:
            offset = 0
            while messages := self._poll(each.partition, offset):
                offset = messages[-1].offset + 1
                for one in messages:
                    headers = {name: str(value) for name, value in headers_of(one.headers).items()}
                    self.hand(each.partition, one.offset, Row(one.payload, headers, one.timestamp_us))

    def _poll(self, partition: int, offset: int) -> tuple[wire.Message, ...]:
        until = time.monotonic() + WAIT_S
        while True:
            try:
                return self._connected().poll(self.stream, self.name, partition, value=offset).messages
            except (OSError, wire.StatusError) as error:
                stopped = isinstance(error, wire.StatusError) and error.status == Status.DISCONNECTED
                is_cut = isinstance(error, OSError) or (stopped and self.site.ways.troubles > self._troubles)
                demand(is_cut and time.monotonic() < until, f"a poll ends with {error!r}")
                self.anew()

    def _connected(self) -> wire.Wire:
        if self._wire is None:
            self._troubles = self.site.ways.troubles
            self._wire = wire.connect(self.site.address("tcp"))
        return self._wire

    def anew(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def written(line: bytes) -> tuple[int, int, Row]:
    """Partition, offset and message."""
    said = json.loads(line)
    payload = said["payload"].encode() if "payload" in said else base64.b64decode(said["payload_base64"])
    return said["partition"], said["offset"], Row(payload, said.get("headers", {}), said["timestamp_us"])
