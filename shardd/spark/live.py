"""Rows from the server, polled by explicit offset: no group, nothing committed. A worker process keeps a connection
between tasks; the next poll is on its way while the last one is decoded. No row is given on before the incarnation
of its answer is proven (proof.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from shardd.client.blocking import BlockingLink
from shardd.client.codec import decode_polled
from shardd.client.errors import ClientError, ProtocolError, ServerError
from shardd.client.marks import Mark
from shardd.client.messages import POLLED_HEAD
from shardd.protocol.bounds import PartitionBounds
from shardd.protocol.errors import Status
from shardd.protocol.primitives import PollingKind
from shardd.protocol.record_layout import LAYOUT_SPARSE
from shardd.spark.cold import DamagedRecordError, explain
from shardd.spark.commands import decoded
from shardd.spark.decode import Decoder, Fault
from shardd.spark.loss import ForeignIncarnationError, HistoryGoneError
from shardd.spark.positions import TopicName
from shardd.spark.proof import Proof, foreign
from shardd.spark.retry import Retries, Servers, is_transient, unreachable
from shardd.spark.server import NOT_FOUND, Server, TopicMissingError, poll_command

_RECORD_BYTES: Final = 64
_FIRST_COUNT: Final = 256
_COMPARED_MAX: Final = 4096  # records of plans that a connection remembers
_ASKED_MAX: Final = 4  # servers for questions about files
COUNT_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Polling:
    """How tasks talk to the server. Pickled to the executors."""

    servers: Servers
    timeout_s: float
    retries: Retries
    poll_bytes: int
    depth: int  # polls on their way

    def server(self) -> Server:
        """For questions beside the polls."""
        return Server(self.servers, timeout_s=self.timeout_s, retries=self.retries)


@dataclass(slots=True)
class _Found:
    """Records of plans that were found on one connection: the server has not been another one since."""

    records: set[tuple[TopicName, int, Mark]] = field(default_factory=set)

    def note(self, proof: Proof, mark: Mark) -> None:
        if len(self.records) >= _COMPARED_MAX:
            self.records.clear()
        self.records.add((proof.name, proof.partition, mark))

    def has(self, proof: Proof, mark: Mark) -> bool:
        return (proof.name, proof.partition, mark) in self.records


@dataclass(slots=True)
class _Link:
    """A connection for polls."""

    connection: BlockingLink
    found: _Found = field(default_factory=_Found)


_Key = tuple[int, int, Servers]  # the process, the number of the server, and all of them
_kept: dict[_Key, _Link] = {}  # with nothing on its way
_stock: set[_Key] = set()  # servers without our extensions


def _keep(key: _Key, link: _Link) -> None:
    other = _kept.pop(key, None)
    if other is not None:
        other.connection.close()
    _kept[key] = link


def read(
    decoder: Decoder,
    polling: Polling,
    name: TopicName,
    partition: int,
    *,
    incarnation: int,
    start: int,
    end: int,
    gaps: bool = False,
    mark: Mark | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of the offsets [start, end) of one incarnation. A connection that breaks is made again, on the next
    server, with pauses as on the driver; a row that came counts as a new beginning. `gaps`: offsets without a message
    are passed over. `mark`: a record of the plan, which every connection must have.

    `HistoryGoneError`, `ForeignIncarnationError`, `DamagedRecordError`, `ServerUnreachableError`, `ServerError`.
    """
    at, failed = start, 0
    while at < end:
        key = (os.getpid(), failed % len(polling.servers), polling.servers)
        link = _kept.pop(key, None)
        was_kept = link is not None
        try:
            if link is None:
                link = _Link(polling.servers.open(failed, polling.timeout_s))
            proof = Proof(name, partition, incarnation, key in _stock)
            for batch, following in _polls(link, decoder, proof, at, end, polling, gaps=gaps, mark=mark):
                at, failed = following, 0
                if batch is not None:
                    yield batch
            at = end
            _keep(key, link)
            link = None
        except ClientError as error:
            if link is not None:
                link.connection.close()
            if _is_stock(error) and key not in _stock:
                _stock.add(key)
                continue
            gone = error.status in NOT_FOUND
            if gone:
                _check_there(polling, name, partition, incarnation)
            elif not is_transient(error):
                raise
            if was_kept and not gone:
                continue  # it may have ended long ago; the next one is fresh
            failed += 1
            if failed > polling.retries.count:
                raise unreachable(polling.servers, failed, error) from error
            polling.retries.pause(failed)
        finally:
            if link is not None:
                link.connection.close()  # answers may be on their way


def _is_stock(error: ClientError) -> bool:
    return error.status == Status.INVALID_COMMAND


def bounds_of(polling: Polling, name: TopicName, partition: int) -> PartitionBounds | None:
    """What there is of a partition now; None when it does not exist. `ServerUnreachableError`, `TopicMissingError`."""
    server = polling.server()
    try:
        return server.bounds({name: (partition,)})[name].partitions[0]
    except TopicMissingError as error:
        if error.gone:
            return None
        raise
    finally:
        server.close()


@dataclass(slots=True)
class _FileServer:
    """A server that is asked about files, and what was found on its connection."""

    server: Server
    found: _Found = field(default_factory=_Found)
    connection: int = 0  # the number of that one

    def _is_same(self) -> bool:
        return self.connection == self.server.connections

    def prove(self, proof: Proof, mark: Mark) -> None:
        """The answer with a record has the whole message, so there is one for each connection, not for each file."""
        if self._is_same() and self.found.has(proof, mark):
            self.server.ping()
            if self._is_same():  # still, so it has not been started again
                return
        place = proof.name, proof.partition
        found = self.server.marks_at({place: mark.offset}).get(place)
        if not self._is_same():
            self.found, self.connection = _Found(), self.server.connections
        if found != mark:
            proof.check_mark(mark, found, None)
            try:
                [now] = self.server.bounds({proof.name: (proof.partition,)})[proof.name].partitions
            except TopicMissingError as error:
                raise ForeignIncarnationError(str(error)) from error
            proof.check_mark(mark, found, now.end)
        if self._is_same():
            self.found.note(proof, mark)


_FileKey = tuple[int, Servers, float, Retries]
_asked: dict[_FileKey, _FileServer] = {}  # for files, of the last readers of this process; none in use


def prove(polling: Polling, name: TopicName, partition: int, *, incarnation: int, mark: Mark) -> None:
    """The server has the record of a plan now, so files that were opened before are of that history: a directory is
    put back while no server runs on it. `ForeignIncarnationError`, `ServerUnreachableError`."""
    key = (os.getpid(), polling.servers, polling.timeout_s, polling.retries)
    asked = _asked.pop(key, None) or _FileServer(polling.server())
    try:
        asked.prove(Proof(name, partition, incarnation, stock=False), mark)
    finally:
        other = _asked.pop(key, None)
        if other is not None:
            other.server.close()
        _asked[key] = asked
        while len(_asked) > _ASKED_MAX:
            _asked.pop(next(iter(_asked))).server.close()


def _check_there(polling: Polling, name: TopicName, partition: int, incarnation: int) -> PartitionBounds:
    """`HistoryGoneError`, `ForeignIncarnationError`."""
    now = bounds_of(polling, name, partition)
    if now is None:
        raise HistoryGoneError(f"partition {partition} of '{name}' does not exist any more", None)
    if now.incarnation != incarnation:
        raise ForeignIncarnationError(foreign(name, partition, incarnation, now.incarnation))
    return now


def removed_until(polling: Polling, name: TopicName, partition: int, incarnation: int, start: int, found: int) -> int:
    """The end of the sparse segments that explain why the offsets [start, found) have no message; `start` when they do
    not: what an operator has isolated is a loss, and so is a topic that is gone. `ServerUnreachableError`."""
    server = polling.server()
    try:
        [now] = server.bounds({name: (partition,)}, segments=True)[name].partitions
    except TopicMissingError:
        return start
    finally:
        server.close()
    until = start
    for each in now.segments if now.incarnation == incarnation else ():
        if each.layout & LAYOUT_SPARSE and each.start <= until < each.end:
            until = each.end
    return until if until >= found else start


def _explain_nothing(polling: Polling, proof: Proof, at: int) -> Exception:
    """An answer without messages, though there were some to come."""
    now = _check_there(polling, proof.name, proof.partition, proof.incarnation)
    label = f"partition {proof.partition} of '{proof.name}'"
    if at < now.first:
        return HistoryGoneError(f"{label} has no offset {at} any more, it begins at {now.first}", now.first)
    if at >= now.end:
        return HistoryGoneError(f"{label} has no offset {at}, it ends at {now.end}", None)
    return ProtocolError(f"{label} has offset {at} and does not give it")


@dataclass(slots=True)
class _Asked:
    """Polls on their way, each with the request that proves it, in order."""

    connection: BlockingLink
    proof: Proof
    ranges: list[tuple[int, int]]

    def ask(self, start: int, end: int) -> None:
        name, partition = self.proof.name, self.proof.partition
        poll = poll_command(name, partition, PollingKind.OFFSET, start, end - start)
        self.connection.send(poll.code, poll.payload)
        self.connection.send(*self.proof.request())
        self.ranges.append((start, end))

    def ask_mark(self, mark: Mark) -> None:
        """Its answer comes before those of the polls behind it: no round trip of its own."""
        poll = poll_command(self.proof.name, self.proof.partition, PollingKind.OFFSET, mark.offset, 1)
        self.connection.send(poll.code, poll.payload)
        self.connection.send(*self.proof.request())

    def compare(self, mark: Mark) -> None:
        """`ForeignIncarnationError`."""
        refused = False
        try:
            found = _first_record(self.connection.receive())
        except ServerError as error:
            if is_transient(error):
                raise
            found, refused = None, True
        end = self.proof.check(bytes(self.connection.receive()))
        self.proof.check_mark(mark, found, None if refused else end)

    def answer(self, buffer: bytearray) -> tuple[int, int, memoryview]:
        """Range and payload of the oldest poll, proven."""
        low, high = self.ranges.pop(0)
        answer = self.connection.receive(buffer)
        self.proof.check(bytes(self.connection.receive()))
        return low, high, answer


def _first_record(answer: memoryview) -> Mark | None:
    messages = decode_polled(bytes(answer)).messages
    return Mark(messages[0].offset, messages[0].checksum) if messages else None


def _polls(
    link: _Link,
    decoder: Decoder,
    proof: Proof,
    start: int,
    end: int,
    polling: Polling,
    *,
    gaps: bool,
    mark: Mark | None,
) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """Batches with the offset behind each, None where nothing is. Asks by count; the count follows the average
    size of what came."""
    asked = _Asked(link.connection, proof, [])
    wanted = mark if mark is not None and not link.found.has(proof, mark) else None
    if wanted is not None:
        asked.ask_mark(wanted)
    count, next_ask, at = _FIRST_COUNT, start, start
    buffers = [bytearray() for _ in range(polling.depth)]
    turn = 0
    while at < end:
        while len(asked.ranges) < polling.depth and next_ask < end:
            upto = min(next_ask + count, end)
            asked.ask(next_ask, upto)
            next_ask = upto
        if wanted is not None:
            asked.compare(wanted)
            link.found.note(proof, wanted)
            wanted = None
        low, high, answer = asked.answer(buffers[turn % polling.depth])
        turn += 1
        if low != at:
            continue  # asked before an answer turned out to be shorter than its count
        _, _, got = decoded(POLLED_HEAD.unpack_from, answer)
        if got == 0 and gaps and _check_there(polling, proof.name, proof.partition, proof.incarnation).end >= end:
            break  # nothing is left of them
        if got == 0:
            raise _explain_nothing(polling, proof, at)
        data = answer[POLLED_HEAD.size :]
        for batch, following in _decoded(decoder, data, proof, at, high, gaps=gaps):
            at = following
            yield batch, at
        if at < high:
            next_ask = at
        average = max(len(data) // got, _RECORD_BYTES)
        count = max(1, min(polling.poll_bytes // average, COUNT_MAX))
    while asked.ranges:  # leave the connection with nothing on its way
        asked.answer(buffers[0])


def _decoded(
    decoder: Decoder, data: memoryview, proof: Proof, start: int, end: int, *, gaps: bool
) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """The batches of one answer. `HistoryGoneError` in front of a gap, `DamagedRecordError`."""
    label = f"partition {proof.partition} of '{proof.name}'"
    position, at = 0, start
    while position < len(data) and at < end:
        decoded = decoder.decode(data, position, at, end, gaps=gaps)
        position, at = decoded.position, decoded.next_offset
        if decoded.batch is not None or gaps:
            yield decoded.batch, at
        if decoded.fault is Fault.GAP and decoded.fault_offset > at:
            found = decoded.fault_offset
            raise HistoryGoneError(f"{label} has no offset {at} any more, but {found}", found)
        if decoded.fault is not Fault.OK:
            raise DamagedRecordError(f"{label}: {explain(decoded.fault, at, decoded.fault_offset)}")
