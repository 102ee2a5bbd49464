"""What a door tells of itself is bounded: it may be captured."""

from __future__ import annotations

import pytest

from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.requests import TellFigures
from shardd.service.liftbridge.figures import LOSSES_MAX, LiftbridgeFigures
from tests.support.on_loop import on_loop


@on_loop
async def test_the_last_ones_told_count() -> None:
    figures = LiftbridgeFigures()
    assert figures.counters() == {}
    await figures.tell(TellFigures(3, {"paused": 1}))
    await figures.tell(TellFigures(5, {"paused": 1, "no_room": 2}))
    assert figures.counters() == {"nats_messages": 5, "paused.nats_lost": 1, "no_room.nats_lost": 2}


@pytest.mark.parametrize(
    "told",
    [
        TellFigures(-1),
        TellFigures(1 << 64),
        TellFigures(0, {"a": -1}),
        TellFigures(0, {"a.b": 1}),
        TellFigures(0, {"": 1}),
        TellFigures(0, {"a" * 33: 1}),
        TellFigures(0, {f"a{number}": 1 for number in range(LOSSES_MAX + 1)}),
    ],
)
def test_what_is_no_count_is_refused(told: TellFigures) -> None:
    figures = LiftbridgeFigures()

    @on_loop
    async def tell() -> None:
        with pytest.raises(ShardError) as caught:
            await figures.tell(told)
        assert caught.value.status is Status.INVALID_COMMAND and figures.counters() == {}

    tell()
