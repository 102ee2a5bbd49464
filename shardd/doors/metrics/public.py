"""What `GET /metrics` of the door for HTTP tells everybody."""

from __future__ import annotations

from shardd.doors.door import Door
from shardd.doors.metrics.collector import Collector, Once
from shardd.doors.metrics.exposition import Exposition
from shardd.doors.metrics.families import write_public


class PublicFigures:
    """Loop thread of the door only. `requests`: that the door has got."""

    def __init__(self, door: Door) -> None:
        self.requests = 0
        self._counts = Once(Collector(door).counts)

    async def text(self) -> bytes:
        to = Exposition(open_metrics=True)
        write_public(await self._counts.get(), self.requests, to)
        return to.text()
