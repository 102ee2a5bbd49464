"""Reads payloads of earlier generations: ids become those of the server (docs/protocol/legacy.md#ids)."""

from __future__ import annotations

from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Consumer, ConsumerKind, Identifier, Payload, Reader


class LegacyReader(Reader):
    """`first_id`: what the first stream, topic, partition, group and user is called."""

    __slots__ = ("_first_id",)

    def __init__(self, data: Payload, first_id: int) -> None:
        super().__init__(data)
        self._first_id = first_id

    def at(self, position: int) -> LegacyReader:
        """Another one over the same payload."""
        other = LegacyReader(self._data, self._first_id)
        other._position = position
        return other

    @property
    def position(self) -> int:
        return self._position

    @property
    def rest(self) -> bytes:
        """Bytes not read yet."""
        return bytes(self._data[self._position :])

    def own_id(self, sent: int) -> int:
        """What the server calls it. An id below the first one is that of nothing."""
        return (sent - self._first_id) & limits.U32_MAX

    def identifier(self) -> Identifier:
        value = super().identifier()
        return value if isinstance(value, str) else self.own_id(value)

    def consumer(self) -> Consumer:
        """Ids of plain consumers are the client's and stay as they are."""
        kind = self._consumer_kind()
        if kind is ConsumerKind.GROUP:
            return Consumer(kind, self.identifier())
        return Consumer(kind, super().identifier())

    def numbered_consumer(self) -> Consumer:
        """Before 0.0.92: a number alone."""
        kind, number = self._consumer_kind(), self.u32()
        return Consumer(kind, self.own_id(number) if kind is ConsumerKind.GROUP else number)

    def _consumer_kind(self) -> ConsumerKind:
        kind = self.u8()
        if kind not in (ConsumerKind.CONSUMER, ConsumerKind.GROUP):
            raise ShardError(Status.INVALID_COMMAND, "unknown kind of consumer")
        return ConsumerKind(kind)

    def partition(self) -> int:
        return self.own_id(self.u32())

    def optional_partition(self) -> int | None:
        """No flag: 0 stands for none."""
        sent = self.u32()
        return self.own_id(sent) if sent != 0 else None

    def chosen_id(self) -> int | None:
        """Of what is created; 0 leaves it to the server."""
        sent = self.u32()
        return self.own_id(sent) if sent != 0 else None

    def name_to_the_end(self) -> str:
        """Before 0.0.50."""
        if self.remaining == 0:
            raise ShardError(Status.INVALID_FORMAT, "name is empty")
        if self.remaining > limits.NAME_BYTES_MAX:
            raise ShardError(Status.INVALID_FORMAT, "name is too long")
        return self.text(self.remaining)
