"""Counters of the Liftbridge door since its start. The door sends them to one worker, which shows them with its own."""

from __future__ import annotations

from typing import Final

from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.limits import U64_MAX

LOSSES_MAX: Final = 32
NAME_CHARACTERS_MAX: Final = 32


class LiftbridgeFigures:
    """Lives on the loop thread."""

    def __init__(self) -> None:
        self._told = requests.TellFigures()

    async def tell(self, request: requests.TellFigures) -> None:
        """3: too many, or what is no name or no count."""
        counts = (request.nats_messages, *request.nats_lost.values())
        names = request.nats_lost
        if (
            len(names) > LOSSES_MAX
            or any(len(name) > NAME_CHARACTERS_MAX or not name.isidentifier() for name in names)
            or not all(0 <= count <= U64_MAX for count in counts)
        ):
            raise ShardError(Status.INVALID_COMMAND)
        self._told = request

    def counters(self) -> dict[str, int]:
        """None before the door has told any."""
        told = self._told
        if not told.nats_messages and not told.nats_lost:
            return {}
        lost = {f"{name}.nats_lost": count for name, count in told.nats_lost.items()}
        return {"nats_messages": told.nats_messages} | lost
