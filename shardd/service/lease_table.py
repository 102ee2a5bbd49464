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
LEASES_OF_PARTITION_MAX: Final = 32  # in the same way, so half of them for the first one
LEASED_BYTES_MAX: Final = 1 << 30  # that a shard keeps for them, of segments that could go
NOTHING: Final = (1 << 64) - 1
_TELL_AGAIN_S: Final = 10.0
_log = logging.getLogger(__name__)

Place = tuple[int, int]  # namespace and incarnation of a partition
_Who = tuple[int, int]  # incarnation of a user (0: root), offset


class _Places:
    """Places for leases, of which users have shares."""

    __slots__ = ("_of_user", "_room")

    def __init__(self, count_max: int) -> None:
        self._room = SharedRoom(count_max, of_addresses=False)
        self._of_user: dict[int, Member] = {}

    @property
    def used(self) -> int:
        return self._room.used

    def has_one_for(self, user: int) -> bool:
        return self._room.has_room(user, "", 1)

    def count(self, user: int, more: int) -> None:
        member = self._of_user.setdefault(user, Member(user, "", _stays, at_work=True))
        self._room.count(member, member.size + more)
        if not member.size:
            del self._of_user[user]


class _Leased:
    """The leases of a partition. `kept_bytes`: what they alone keep, because of the lowest one."""

    __slots__ = ("kept_bytes", "lowest", "places", "until_s")

    def __init__(self) -> None:
        self.places = _Places(LEASES_OF_PARTITION_MAX)
        self.until_s: dict[_Who, float] = {}
        self.lowest: _Who = (0, NOTHING)
        self.kept_bytes = 0

    def find_lowest(self) -> None:
        self.lowest = min(self.until_s, key=lambda who: who[1], default=(0, NOTHING))


class Leases:
    """Of the partitions of a shard. Lives on the loop thread."""

    def __init__(self, engine: Engine, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock_s = engine, clock_s
        self._leased: dict[Place, _Leased] = {}
        self._places = _Places(LEASES_OF_SHARD_MAX)
        self._short = False
        self._ended = 0
        self._tell_again_s = 0.0

    def gauges(self) -> dict[str, int]:
        """Leases, and bytes of segments that they alone keep."""
        return {"leases": self._places.used, "leased_bytes": self._kept_bytes()}

    def counters(self) -> dict[str, int]:
        """Leases that ended before their time, for want of room."""
        return {"leases_ended": self._ended}

    def take(self, place: Place, user: int, offset: int, seconds: int) -> Status:
        """`user`: an incarnation, 0 for root. OK, or FEATURE_UNAVAILABLE: there are too many, or the disk is short.
        KeyError: no such partition here."""
        who = (user, offset)
        self._end_late(place)
        own = self._leased.get(place)
        if own is not None and who in own.until_s:
            if seconds and not self._short:
                self._engine.partition_lease(*place, own.lowest[1])  # KeyError, where it is gone
                own.until_s[who] = self._clock_s() + seconds
                return Status.OK
            self._end(place, [who])
        if seconds == 0:
            return Status.OK
        if not self._has_room(place, user):
            for each in list(self._leased):
                self._end_late(each)
            if not self._has_room(place, user):
                return Status.FEATURE_UNAVAILABLE
        own = self._leased.get(place) or _Leased()
        self._engine.partition_lease(*place, min(offset, own.lowest[1]))
        self._leased[place] = own
        own.until_s[who] = self._clock_s() + seconds
        own.find_lowest()
        own.places.count(user, 1)
        self._places.count(user, 1)
        return Status.OK

    def _has_room(self, place: Place, user: int) -> bool:
        own = self._leased.get(place)
        return not self._short and self._places.has_one_for(user) and (own is None or own.places.has_one_for(user))

    # ---- what retention tells ----

    def look(self, *, short: bool) -> None:
        """Whether the disk is short: then there are none."""
        self._short = short
        for place in list(self._leased):
            if short:
                self._give_up(place, list(self._leased[place].until_s), "the disk is short")
            else:
                self._end_late(place)

    def cleaned(self, place: Place, kept_bytes: int) -> None:
        """What the leases of a partition keep: it counts for the user of the lowest one. With too much in all, the user
        with most of it loses its leases of the partition where they keep most."""
        if place not in self._leased:
            return
        self._leased[place].kept_bytes = kept_bytes
        while self._kept_bytes() > LEASED_BYTES_MAX:
            most, user = self._most_kept()
            own = self._leased[most]
            own.kept_bytes = 0  # what those of others keep is told when the partition is cleaned again
            theirs = [who for who in own.until_s if who[0] == user]
            self._give_up(most, theirs, f"they keep more than {LEASED_BYTES_MAX // (1 << 20)} MiB")

    def _kept_bytes(self) -> int:
        return sum(own.kept_bytes for own in self._leased.values())

    def _most_kept(self) -> tuple[Place, int]:
        of_users = Counter[int]()
        for own in self._leased.values():
            of_users[own.lowest[0]] += own.kept_bytes
        [(user, _)] = of_users.most_common(1)
        theirs = [place for place, own in self._leased.items() if own.lowest[0] == user]
        return max(theirs, key=lambda place: self._leased[place].kept_bytes), user

    def _give_up(self, place: Place, ended: list[_Who], why: str) -> None:
        self._ended += len(ended)
        if self._clock_s() >= self._tell_again_s:
            self._tell_again_s = self._clock_s() + _TELL_AGAIN_S
            _log.warning("leases of readers end before their time: %s", why)
        self._end(place, ended)

    def _end_late(self, place: Place) -> None:
        own, now_s = self._leased.get(place), self._clock_s()
        late = [] if own is None else [who for who, until_s in own.until_s.items() if until_s <= now_s]
        if late:
            self._end(place, late)

    def _end(self, place: Place, ended: list[_Who]) -> None:
        own = self._leased[place]
        for who in ended:
            del own.until_s[who]
            own.places.count(who[0], -1)
            self._places.count(who[0], -1)
        own.find_lowest()
        if not own.until_s:
            del self._leased[place]
        try:
            self._engine.partition_lease(*place, own.lowest[1])
        except KeyError:  # the partition is gone: its leases end with their time
            return


def _stays() -> None:
    raise AssertionError("a lease ends by itself")
