"""Where a reader without a group is in a partition: it sees that the history is another one, and what is gone. Which
partitions it reads: those that come later, too, when it follows the topic."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from shardd.cli.output import printable
from shardd.cli.reading import Span
from shardd.cli.remote import Remote
from shardd.client import commands, statuses
from shardd.client.codec import decode_position
from shardd.client.errors import NotFoundError, PermissionDeniedError, ServerError
from shardd.client.history import Loss, Reset, gaps, is_another, seen_at
from shardd.client.marks import Mark, Verdict
from shardd.client.messages import POLLED_HEAD, POSITION_HEAD_BYTES, History, Polled, with_history
from shardd.client.positions import Place
from shardd.client.remembered import Remembered
from shardd.client.session import Session
from shardd.client.values import PartitionBounds

Ask = Callable[[int, int], Awaitable[Polled | None]]
"""For the first message of a partition from an offset on. None: it is damaged."""
_ASKED_EVERY_S: Final = 1.0  # which partitions there are, as a consumer asks


async def asks_positions(remote: Remote) -> bool:
    """Whether the server tells histories (docs/extensions.md#poll-position). ClientError."""
    try:
        found = await remote.client.call(commands.extensions())
    except ServerError as error:
        if error.status != statuses.INVALID_COMMAND:
            raise
        return False
    return any(each.code == commands.POLL_POSITION for each in found.commands)


def tell(sentence: str) -> None:
    """What happens to the messages that are followed, beside them."""
    print(f"shardd: {printable(sentence)}", file=sys.stderr, flush=True)


def sentence_of(topic: str, loss: Loss) -> str:
    last = f" to {loss.end - 1}" if loss.end - 1 > loss.begin else ""
    return f"{topic}: offset {loss.begin}{last} of partition {loss.partition} is gone"


def reset_sentence(topic: str, reset: Reset) -> str:
    return f"{topic}: {reset}: offset {reset.next_offset} is void"


class SpanPlace:
    """Of one span. `gone`: what of a span with an end could not be read, as sentences. `remembered`: of all spans."""

    def __init__(self, topic: str, span: Span, read: Callable[[bytes], Any], remembered: Remembered) -> None:
        self._topic, self._read, self._remembered = topic, read, remembered
        self.partition, self.end = span.partition, span.end
        self._place = Place(span.partition, commands.OFFSET, span.begin, is_kept=True)
        self._place.was_read = True
        if span.incarnation:
            self._place.history = History(span.incarnation)
        self.gone: list[str] = []

    @property
    def at(self) -> int:
        return self._place.value

    @property
    def is_over(self) -> bool:
        return 0 <= self.end <= self.at

    def take(self, answer: bytes, *, positions: bool) -> Any:
        """What `read` makes of an answer. None: nothing of it belongs to the span."""
        place = self._place
        partition, current_offset, _count = POLLED_HEAD.unpack_from(answer)
        polled = Polled(partition, current_offset, [])
        body = answer
        if positions:
            polled = with_history(answer, polled)
            body = answer[: POLLED_HEAD.size] + answer[POSITION_HEAD_BYTES:]
        found = self._read(body)
        if is_another(place, polled) if found.size == 0 else _is_other_history(place, polled):
            self._reset(Reset(self.partition, place.history, polled.history, place.value))
            place.history = polled.history
            return None
        place.history = polled.history or place.history
        if found.size == 0 or found.next_offset - place.value != found.size:
            whole = decode_position(answer) if positions and found.size else polled
            self._lose(whole, found)
        if found.size == 0:
            if self.end >= 0:
                place.read_to(self.end - 1)
            return None
        place.read_to(found.next_offset - 1)
        self._remembered.read(self.partition, Mark(found.next_offset - 1, found.last_checksum))
        self._remembered.commit(self.partition)
        return found

    def seen(self, polled: Polled | None, offset: int) -> Mark | Verdict | None:
        """What an answer says of a mark at the offset."""
        return seen_at(self._place, polled, offset)

    def put_back(self) -> None:
        """What was read of it is not there."""
        here = self._place.history
        self._reset(Reset(self.partition, here, here, self._place.value, put_back=True))
        self._place.history = here

    def _reset(self, reset: Reset) -> None:
        place = self._place
        self._remembered.forget(self.partition)
        sentence = reset_sentence(self._topic, reset)
        if self.end >= 0:
            self.gone.append(f"{sentence}, {self.end - place.value} messages were not read")
            place.read_to(self.end - 1)
            return
        place.begin_anew(commands.OFFSET)
        place.was_read = place.is_kept = True
        tell(f"{sentence}; the new history is read from its start")

    def _lose(self, polled: Polled, found: Any) -> None:
        place = self._place
        ranges = gaps(place, polled)
        if self.end >= 0 and found.size == 0 and not polled.is_sparse:
            ranges = [(place.value, self.end)]
        for begin, end in ranges:
            end = end if self.end < 0 else min(end, self.end)
            if begin >= end:
                continue
            sentence = sentence_of(self._topic, Loss(self.partition, begin, end))
            if self.end >= 0:
                self.gone.append(sentence)
            else:
                tell(sentence)
                if found.size == 0:
                    place.read_to(end - 1)


class Places:
    """Of one reader. `here`: what it reads now, by partition. `grows`: it reads every partition of the topic, one that
    comes later from its first message on; one that comes back is at the place where it left."""

    def __init__(self, topic: str, spans: Sequence[Span], read: Callable[[bytes], Any], *, grows: bool) -> None:
        self._topic, self._read, self._grows, self._asks = topic, read, grows, grows
        self._remembered = Remembered()
        self._all = {span.partition: SpanPlace(topic, span, read, self._remembered) for span in spans}
        self.here = dict(self._all)
        self._asked_at_s = time.monotonic()

    async def begin(self, session: Session, ask: Ask) -> None:
        """A follower that begins behind a message remembers that one, which it does not write."""
        for place in [each for each in self.here.values() if each.end < 0 and each.at]:
            with contextlib.suppress(NotFoundError):  # as the next poll tells
                seen = place.seen(await ask(place.partition, place.at - 1), place.at - 1)
                self._remembered.connections = session.connections
                if isinstance(seen, Mark) and seen.offset == place.at - 1:
                    self._remembered.read(place.partition, seen)

    async def believes(self, place: SpanPlace, session: Session, ask: Ask) -> bool:
        """Whether the answer that has just come is taken: on a connection on which what was read of the partition has
        been found again. Else that is looked for now, and the place is polled anew: behind a directory that was put
        back as files its messages are others (docs/adr/0140-marks-of-a-history.md)."""
        self._remembered.connections = session.connections
        if self._remembered.is_proven(place.partition):
            return True

        async def look(offset: int) -> Mark | Verdict | None:
            found = place.seen(await ask(place.partition, offset), offset)
            self._remembered.connections = session.connections
            return found

        if await self._remembered.compare(place.partition, look) is Verdict.OTHER:
            place.put_back()
        return False

    @property
    def gone(self) -> list[str]:
        return [sentence for place in self._all.values() for sentence in place.gone]

    @property
    def is_due(self) -> bool:
        """Whether to ask which partitions there are."""
        return self._asks and time.monotonic() - self._asked_at_s >= _ASKED_EVERY_S

    async def grow(self, ask: Callable[[], Awaitable[Sequence[PartitionBounds]]]) -> None:
        """`ask`: for the bounds of all partitions, which needs the right to poll and no other. NotFoundError without a
        topic. Where it is refused, polls say whether the user may go on."""
        try:
            found = await ask()
        except PermissionDeniedError as error:
            self._asks = False
            tell(f"{self._topic}: partitions that are added from now on are not read: {error}")
            return
        self._asked_at_s = time.monotonic()
        for partition in (each.id for each in found):
            if partition not in self.here:
                later = Span(partition, 0, -1)
                made = SpanPlace(self._topic, later, self._read, self._remembered)
                self.here[partition] = self._all.setdefault(partition, made)

    def leave(self, place: SpanPlace, error: NotFoundError) -> None:
        """A partition that is not there any more. The error, where it was asked for."""
        if not self._grows or error.status != statuses.PARTITION_NOT_FOUND:
            raise error
        del self.here[place.partition]
        tell(f"{self._topic}: partition {place.partition} was deleted, offset {place.at} was next")


def _is_other_history(place: Place, polled: Polled) -> bool:
    here, now = place.history, polled.history
    return here is not None and now is not None and here != now
