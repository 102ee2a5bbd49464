"""Leases of readers: files of segments that retention leaves for a while for who reads them directly
(docs/adr/0090-a-lease-of-files.md). In the memory of the partition's owner; a restart forgets them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from shardd.engine import Engine
from shardd.protocol.errors import Status
from shardd.runtime.crowds import Member, SharedRoom

LEASES_OF_SHARD_MAX: Final = 4096  # of one user as many as are left free: half for the first one
LEASES_OF_PARTITION_MAX: Final = 16
LEASED_BYTES_MAX: Final = 1 << 30  # that a shard keeps for them, of segments that could go
NOTHING: Final = (1 << 64) - 1
_TELL_AGAIN_S: Final = 10.0
_log = logging.getLogger(__name__)

Place = tuple[int, int]  # namespace and incarnation of a partition
_Who = tuple[int, int]  # user, offset


class Leases:
    """Of the partitions of a shard. Lives on the loop thread."""

    def __init__(self, engine: Engine, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock_s = engine, clock_s
        self._until_s: dict[Place, dict[_Who, float]] = {}
        self._room = SharedRoom(LEASES_OF_SHARD_MAX, of_addresses=False)
        self._of_user: dict[int, Member] = {}
        self._kept_bytes: Counter[Place] = Counter()
        self._short = False
        self._ended = 0
        self._tell_again_s = 0.0

    def gauges(self) -> dict[str, int]:
        """Leases, and bytes of segments that they alone keep."""
        return {"leases": self._room.used, "leased_bytes": self._kept_bytes.total()}

    def counters(self) -> dict[str, int]:
        """Leases that ended before their time, for want of room."""
        return {"leases_ended": self._ended}

    def take(self, place: Place, user: int, offset: int, seconds: int) -> Status:
        """OK, or FEATURE_UNAVAILABLE: there are too many, or the disk is short. KeyError: no such partition here."""
        own = self._until_s.get(place, {})
        if (user, offset) in own:
            self._end(place, [(user, offset)])
        if seconds == 0:
            return Status.OK
        self._end_late(place)
        if not self._has_room(place, user):
            for each in list(self._until_s):
                self._end_late(each)
            if not self._has_room(place, user):
                return Status.FEATURE_UNAVAILABLE
        own = self._until_s.get(place, {})
        self._engine.partition_lease(*place, min([offset, *(each for _, each in own)]))
        self._until_s.setdefault(place, own)[user, offset] = self._clock_s() + seconds
        self._count(user, 1)
        return Status.OK

    def _has_room(self, place: Place, user: int) -> bool:
        return not (
            self._short
            or not self._room.has_room(user, "", 1)
            or len(self._until_s.get(place, ())) >= LEASES_OF_PARTITION_MAX
        )

    def _count(self, user: int, more: int) -> None:
        member = self._of_user.setdefault(user, Member(user, "", _stays, at_work=True))
        self._room.count(member, member.size + more)
        if not member.size:
            del self._of_user[user]

    # ---- what retention tells ----

    def look(self, *, short: bool) -> None:
        """Whether the disk is short: then there are none."""
        self._short = short
        for place in list(self._until_s):
            if short:
                self._give_up(place, "the disk is short")
            else:
                self._end_late(place)

    def cleaned(self, place: Place, kept_bytes: int) -> None:
        """What the leases of a partition keep. With too much in all, the partition with most of it loses its own."""
        if place not in self._until_s:
            return
        self._kept_bytes[place] = kept_bytes
        while self._kept_bytes.total() > LEASED_BYTES_MAX:
            [(most, _)] = self._kept_bytes.most_common(1)
            self._give_up(most, f"they keep more than {LEASED_BYTES_MAX // (1 << 20)} MiB")

    def _give_up(self, place: Place, why: str) -> None:
        own = list(self._until_s[place])
        self._ended += len(own)
        if self._clock_s() >= self._tell_again_s:
            self._tell_again_s = self._clock_s() + _TELL_AGAIN_S
            _log.warning("leases of readers end before their time: %s", why)
        self._end(place, own)

    def _end_late(self, place: Place) -> None:
        own, now_s = self._until_s.get(place, {}), self._clock_s()
        late = [who for who, until_s in own.items() if until_s <= now_s]
        if late:
            self._end(place, late)

    def _end(self, place: Place, ended: list[_Who]) -> None:
        own = self._until_s[place]
        for user, offset in ended:
            del own[user, offset]
            self._count(user, -1)
        if not own:
            del self._until_s[place]
            del self._kept_bytes[place]
        try:
            self._engine.partition_lease(*place, min((offset for _, offset in own), default=NOTHING))
        except KeyError:  # the partition is gone: its leases end with their time
            return


def _stays() -> None:
    raise AssertionError("a lease ends by itself")
