"""What becomes of a place when the history of its partition ends, or when messages in front of it are gone. Sans-IO.

A purge begins another history of a partition at offset 0, and so does a topic that was made again. An offset says
nothing without its history (docs/adr/0117-positions.md)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

from shardd.client import commands
from shardd.client.errors import ClientError, SettingsError
from shardd.client.marks import Mark, Verdict
from shardd.client.messages import History, Message, Polled
from shardd.client.positions import Place
from shardd.client.remembered import Remembered

OnReset = Literal["earliest", "latest", "error"]
OnLoss = Literal["skip", "error"]
Ask = Callable[[int], Awaitable[Polled | None]]
"""For the first message of a partition from an offset on."""
_log: Final = logging.getLogger("shardd.client")


class Reset(NamedTuple):
    """A partition has another history. `next_offset`: where the consumer would have gone on in the one before.
    `before`, `now`: None where the server does not tell histories. `put_back`: they are the same, but the messages are
    others, as of a data directory that is put back as files."""

    partition: int
    before: History | None
    now: History | None
    next_offset: int
    put_back: bool = False

    def __str__(self) -> str:
        what = "was put back as files, or lost messages in a power cut" if self.put_back else "was purged or made again"
        return f"partition {self.partition} {what}"


class Loss(NamedTuple):
    """Offsets [begin, end) of a partition were removed, or isolated as damaged, before the consumer read them."""

    partition: int
    begin: int
    end: int


class HistoryChangedError(ClientError):
    """With `on_reset="error"`. The next call reads the new history from its start."""

    def __init__(self, reset: Reset) -> None:
        super().__init__(f"{reset}; offset {reset.next_offset} is void")
        self.reset = reset


class MessagesLostError(ClientError):
    """With `on_loss="error"`. The next call goes on behind what is lost."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(f"offsets {loss.begin} to {loss.end - 1} of partition {loss.partition} are gone")
        self.loss = loss


class Histories:
    """Of one consumer: the histories of its partitions, and what it tells of them. `lost`: messages that are gone."""

    def __init__(
        self,
        topic: str,
        on_reset: OnReset,
        on_loss: OnLoss,
        when_reset: Callable[[Reset], None] | None,
        when_lost: Callable[[Loss], None] | None,
    ) -> None:
        if on_reset not in ("earliest", "latest", "error"):
            raise SettingsError(f"on_reset is earliest, latest or error, not {on_reset!r}")
        if on_loss not in ("skip", "error"):
            raise SettingsError(f"on_loss is skip or error, not {on_loss!r}")
        self._topic, self._on_reset, self._on_loss = topic, on_reset, on_loss
        self._when_reset, self._when_lost = when_reset, when_lost
        self._known: dict[int, History] = {}  # outlives the places of a member
        self._reached: dict[int, int] = {}  # as this does: what is in front of that, in that history, was handed out
        self._pending: deque[Reset] = deque()  # not raised yet
        self._void: dict[int, int] = {}  # `resumes` of places that were put back and not committed since
        self._remembered = Remembered()
        self.lost = self.resets = 0

    def connected(self) -> None:
        """On a new connection the server may have other files."""
        self._remembered.connections += 1

    def committed(self, partition: int) -> None:
        self._void.pop(partition, None)
        self._remembered.commit(partition)

    async def prove(self, place: Place, ask: Ask) -> None:
        """Compares what was read of a partition with what the server has from an offset on, once on each connection.
        HistoryChangedError."""
        if await self.verdict(place, ask) is Verdict.OTHER:
            self._reset(place, Reset(place.partition, place.history, place.history, place.value, put_back=True))
            self.raise_pending()

    async def verdict(self, place: Place, ask: Ask) -> Verdict:
        """The same, and nothing becomes of the place."""

        async def look(offset: int) -> Mark | Verdict | None:
            return seen_at(place, await ask(offset), offset)

        verdict = await self._remembered.compare(place.partition, look)
        if verdict is Verdict.UNKNOWN:
            _log.info(
                "%s: none of the remembered messages of partition %d is left: whether its files were put back cannot"
                " be told",
                self._topic,
                place.partition,
            )
        return verdict

    def is_proven(self, partition: int) -> bool:
        """Whether what was read of it is there, as far as is known of this connection."""
        return self._remembered.is_proven(partition)

    def place(self, place: Place, history: History | None) -> Place:
        """A partition that has just come; `history` as the server told it before it told a stored offset."""
        before = self._known.get(place.partition)
        place.history = history
        if history is not None and before is not None and before.incarnation != history.incarnation:
            reset = Reset(place.partition, before, history, place.value)
            if place.resumes:  # stored in the new history
                self._void.pop(place.partition, None)
                self._remembered.forget(place.partition)
                self._reached.pop(place.partition, None)
                self._tell(reset)
            else:
                self._reset(place, reset)
        elif place.resumes and self._void.get(place.partition) == place.resumes:
            place.begin_anew(commands.FIRST, place.resumes)
        place.reached = self._reached.get(place.partition, 0)
        if history is not None:
            self._known[place.partition] = history
        return place

    def know(self, partition: int, history: History) -> None:
        """What it has of a partition belongs to this history."""
        self._known[partition] = history

    def has_ended(self, partition: int, history: History) -> bool:
        """Whether a later one is known."""
        known = self._known.get(partition)
        return known is not None and known.incarnation != history.incarnation

    def take(self, place: Place, polled: Polled) -> list[Message]:
        """The messages of an answer that belong to the place, which moves behind them; no message where `prove` was not
        asked on the connection of the answer. HistoryChangedError, MessagesLostError."""
        if not self._remembered.is_proven(place.partition):
            return []
        if is_another(place, polled):
            self._reset(place, Reset(place.partition, place.history, polled.history, place.value))
            if polled.history is not None:
                place.history = self._known[place.partition] = polled.history
            self.raise_pending()
            return []
        if polled.history is not None:
            place.history = self._known[place.partition] = polled.history
        place.end = max(place.end, polled.current_offset)
        messages = polled.messages
        for begin, end in gaps(place, polled):
            before = [each for each in messages if each.offset < begin]
            if self._on_loss == "error" and before:
                messages = before  # the next poll begins at the gap
                break
            self._lose(place, Loss(place.partition, begin, end))
        if messages:
            place.read_to(messages[-1].offset)
            self._remembered.read(place.partition, Mark(messages[-1].offset, messages[-1].checksum))
        return messages

    def leave(self, place: Place) -> None:
        """Messages that were polled and not handed out are for another place, which reads them or misses them."""
        known = self._known.get(place.partition)
        if place.handed >= 0 and (known is None or known == place.history):
            self._reached[place.partition] = max(place.handed + 1, self._reached.get(place.partition, 0))

    def _lose(self, place: Place, loss: Loss) -> None:
        if loss.begin <= max(place.handed + 1, self._reached.get(place.partition, 0)):
            self._reached[place.partition] = loss.end
        place.read_to(loss.end - 1)
        self.lost += loss.end - loss.begin
        _log.warning("%s: offsets %d to %d of partition %d are lost", self._topic, loss.begin, loss.end - 1, loss[0])
        if self._when_lost is not None:
            self._when_lost(loss)
        if self._on_loss == "error":
            raise MessagesLostError(loss)

    def _reset(self, place: Place, reset: Reset) -> None:
        self._remembered.forget(place.partition)
        self._reached.pop(place.partition, None)
        self._void.pop(place.partition, None)
        if reset.put_back and self._on_reset != "latest":
            self._void[place.partition] = place.resumes
        strategy = commands.LAST if self._on_reset == "latest" else commands.FIRST
        place.begin_anew(strategy, place.resumes if reset.put_back else 0)
        if self._on_reset == "error":
            self._pending.append(reset)
        self._tell(reset)

    def raise_pending(self) -> None:
        """HistoryChangedError, once for each reset, also of a partition that is another member's by now."""
        if self._pending:
            raise HistoryChangedError(self._pending.popleft())

    def _tell(self, reset: Reset) -> None:
        self.resets += 1
        _log.warning("%s: %s: offset %d is void", self._topic, reset, reset.next_offset)
        if self._when_reset is not None:
            self._when_reset(reset)


def seen_at(place: Place, polled: Polled | None, offset: int) -> Mark | Verdict | None:
    """What an answer with the first message from the offset of a mark on says of that mark, as `compared` wants it."""
    if polled is None:
        return None
    here, now = place.history, polled.history
    if polled.partition != place.partition or (now is not None and now.incarnation == 0):
        return Verdict.UNTOLD  # the member does not have the partition, as the next poll tells
    if here is not None and now is not None and here.incarnation != now.incarnation:
        return Verdict.SAME  # the next answer tells which history there is
    if polled.messages:
        return Mark(polled.messages[0].offset, polled.messages[0].checksum)
    if now is None and not polled.current_offset:
        return None  # it is empty, or not of this member
    return Verdict.OTHER if offset > polled.current_offset else None  # it ends before what was read


def is_another(place: Place, polled: Polled) -> bool:
    """Whether an answer belongs to another history than the place."""
    here, now = place.history, polled.history
    if here is not None and now is not None:
        if here.incarnation != now.incarnation:
            return True
        if here.epoch != now.epoch and polled.epoch_from < place.value:
            return True
    elif place.was_read and polled.current_offset < place.end:
        return True  # an end that went back
    return place.was_read and not polled.messages and polled.current_offset + 1 < place.value


def gaps(place: Place, polled: Polled) -> list[tuple[int, int]]:
    """Ranges of offsets from the place on that are gone, but for those that were handed out before. Where a partition
    is sparse only the removed ones. Offsets in front of the first message are not a loss of a consumer that had no
    position."""
    found = _missing(place, polled)
    if not place.reached:
        return found
    return [(max(begin, place.reached), end) for begin, end in found if end > place.reached]


def _missing(place: Place, polled: Polled) -> list[tuple[int, int]]:
    messages, at = polled.messages, place.value
    found: list[tuple[int, int]] = []
    if not place.is_kept and not place.begins_in_front:
        if not messages:
            return found
        at = messages[0].offset
    if polled.first_offset > at:
        end = polled.first_offset
        if messages:
            end = min(end, messages[0].offset)
        if end > at:
            found.append((at, end))
            at = end
    if polled.is_sparse or not messages or messages[-1].offset - at + 1 == len(messages):
        return found
    for each in messages:
        if each.offset > at:
            if found and found[-1][1] == at:
                at = found.pop()[0]
            found.append((at, each.offset))
        at = each.offset + 1
    return found
