"""What a consumer remembers of the messages of each partition, to know them again on a new connection. Sans-IO, but for
the look at the server that it is given (docs/adr/0140-marks-of-a-history.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shardd.client.marks import Mark, Marks, Verdict, added, compared


class Remembered:
    """Of one consumer. It outlives the places of a member, which are new on each connection. `connections`: how many
    there were."""

    def __init__(self) -> None:
        self.connections = 0
        self._last: dict[int, Mark] = {}
        self._committed: dict[int, Marks] = {}  # the last record that was read, at each of the last commits
        self._proven: dict[int, int] = {}  # on which connection

    def read(self, partition: int, last: Mark) -> None:
        """On the connection on which it was proven."""
        self._last[partition] = last
        self._proven[partition] = self.connections

    def commit(self, partition: int) -> None:
        if partition in self._last:
            self._committed[partition] = added(self._committed.get(partition, ()), self._last[partition])

    def forget(self, partition: int) -> None:
        """Its history has ended."""
        self._last.pop(partition, None)
        self._committed.pop(partition, None)

    def is_proven(self, partition: int) -> bool:
        """Whether an answer of this connection may be believed: what was read is there, or nothing was read."""
        return partition not in self._last or self._proven.get(partition) == self.connections

    async def compare(self, partition: int, look: Callable[[int], Awaitable[Mark | Verdict | None]]) -> Verdict:
        """SAME where there is nothing to ask. It stays unproven when the connection is another one at the end, and
        where it is OTHER or UNTOLD."""
        if self.is_proven(partition):
            return Verdict.SAME
        connection = self.connections
        check = compared(reversed(added(self._committed.get(partition, ()), self._last[partition])))
        offset = next(check)
        while True:
            found = await look(offset)
            try:
                offset = check.send(found)
            except StopIteration as end:
                verdict: Verdict = end.value
                break
        if connection != self.connections:
            return Verdict.SAME
        if verdict in (Verdict.SAME, Verdict.UNKNOWN):
            self._proven[partition] = connection
        return verdict
