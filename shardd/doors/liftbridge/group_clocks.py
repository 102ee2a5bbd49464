"""How long members of consumer groups have been silent. Who is silent for too long leaves its group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from shardd.doors.door import Door
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import AllGroups, ExpireMember, GroupInfo

_LOOKS: Final = 10  # in one time-out
_EXPIRED_AT_ONCE: Final = 64
_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


class _Group(msgspec.Struct):
    epoch: int
    heard_at_s: dict[str, float]  # by member


class GroupClocks:
    """Loop thread only."""

    def __init__(self, door: Door, timeout_s: float) -> None:
        self._door = door
        self._timeout_s = timeout_s
        self._groups: dict[str, _Group] = {}

    async def load(self) -> None:
        """Of all members from now on. ShardError, WorkerLostError."""
        said = await self._door.task("all_groups", AllGroups())
        self._groups.clear()
        for group in msgspec.convert(said, list[GroupInfo], strict=False):
            self.learn(group)

    def learn(self, group: GroupInfo) -> None:
        """As it is now, with all its members: whoever is new in it is heard now."""
        self.learn_some(group)
        known = self._groups[group.name]
        known.heard_at_s = {each: known.heard_at_s[each] for each in group.members}
        if not group.members:
            del self._groups[group.name]

    def learn_some(self, group: GroupInfo) -> None:
        """The same of the members that somebody may see."""
        now_s = asyncio.get_running_loop().time()
        known = self._groups.setdefault(group.name, _Group(group.epoch, {}))
        known.epoch = group.epoch
        for each in group.members:
            known.heard_at_s.setdefault(each, now_s)

    def heard(self, group: str, consumer: str) -> None:
        known = self._groups.get(group)
        if known is not None and consumer in known.heard_at_s:
            known.heard_at_s[consumer] = asyncio.get_running_loop().time()

    def forget(self, group: str, consumer: str) -> None:
        """It has left."""
        known = self._groups.get(group)
        if known is not None:
            known.heard_at_s.pop(consumer, None)
            if not known.heard_at_s:
                del self._groups[group]

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._timeout_s / _LOOKS)
            silent = [*self._silent()]
            for at in range(0, len(silent), _EXPIRED_AT_ONCE):
                some = silent[at : at + _EXPIRED_AT_ONCE]
                if not all(await asyncio.gather(*(self._expire(*each) for each in some))):
                    await asyncio.sleep(_RETRY_S)
                    break
            if silent:
                await self._look_again()

    def _silent(self) -> Iterable[tuple[str, str, int]]:
        before_s = asyncio.get_running_loop().time() - self._timeout_s
        for name, group in self._groups.items():
            for member, heard_at_s in group.heard_at_s.items():
                if heard_at_s < before_s:
                    yield name, member, group.epoch

    async def _expire(self, group: str, consumer: str, epoch: int) -> bool:
        try:
            await self._door.task("expire_member", ExpireMember(group, consumer, epoch))
        except (ShardError, WorkerLostError) as error:
            _log.warning("the silent member %s of the group %s stays for now: %s", consumer, group, error)
            return False
        return True

    async def _look_again(self) -> None:
        """Who is still there, and with which epoch. The clocks of those go on."""
        try:
            said = await self._door.task("all_groups", AllGroups())
        except (ShardError, WorkerLostError):
            return
        found = msgspec.convert(said, list[GroupInfo], strict=False)
        there = {group.name for group in found}
        for name in [each for each in self._groups if each not in there]:
            del self._groups[name]
        for group in found:
            self.learn(group)
