"""What a client of a door is to those who publish for it, without a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from shardd.doors.door import DoorClient


class FakeClient:
    """`leave()`: it is closed, or its worker is lost."""

    is_open = True

    def __init__(self, user_id: int = 1, network: str = "192.0.2.1", owner: int = 1) -> None:
        self.user_id, self.owner, self.network = user_id, owner, network
        self._left: list[Callable[[DoorClient], None]] = []

    @property
    def client(self) -> DoorClient:
        return cast(DoorClient, self)

    def when_left(self, hear: Callable[[DoorClient], None]) -> None:
        self._left.append(hear)

    def leave(self) -> None:
        self.is_open = False
        for hear in self._left:
            hear(self.client)
