"""Negative acks of publishers over NATS whose worker was lost before it said whether they may send to the stream. An
ack names the stream, so another worker is asked first: at the next login of the same user, which is there already or
comes when the publisher connects again. Where no worker says so in time, the publisher hears nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Final

import msgspec

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.publish_turns import share_of
from shardd.doors.liftbridge.refusals import COMMAND
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import RequireRight, Right
from shardd.runtime.crowds import FullError, Member, SharedRoom

LATE_MAX: Final = 4_096  # acks that wait for a worker to say that their publisher may send
LATE_S: Final = 10.0  # so long they wait
PAUSE_S: Final = 0.2  # between two looks for logins
_log = logging.getLogger(__name__)


class _Late(msgspec.Struct, eq=False):
    member: Member
    stream: str
    send: Callable[[], None]
    end_s: float


class LateRefusals:
    """Loop thread only. `clients`: all that the door has at workers now."""

    def __init__(self, clients: Callable[[], Iterable[DoorClient]]) -> None:
        self._clients = clients
        self._room = SharedRoom(LATE_MAX)
        self._waiting: dict[Hashable, list[_Late]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def tell(self, client: DoorClient, stream: str, send: Callable[[], None]) -> None:
        """`send` is called when a worker has said that the client's user may send to the stream. Where the share of the
        user is full, it is not."""
        owner, network = share_of(client)
        try:
            member = self._room.enter(owner, network, _stays, at_work=True)
        except FullError:
            return
        late = _Late(member, stream, send, asyncio.get_running_loop().time() + LATE_S)
        self._wait(owner, [late])

    def _wait(self, owner: Hashable, late: list[_Late]) -> None:
        self._waiting.setdefault(owner, []).extend(late)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="late refusals")

    async def _look(self) -> None:
        """While acks wait: once for all users, whose clients are many."""
        while self._waiting:
            await asyncio.sleep(PAUSE_S)
            now_s = asyncio.get_running_loop().time()
            clients = {share_of(each)[0]: each for each in self._clients() if each.is_open and each.user_id >= 0}
            for owner, waiting in [*self._waiting.items()]:
                del self._waiting[owner]
                late = [each for each in waiting if now_s < each.end_s]
                for each in waiting:
                    if now_s >= each.end_s:
                        self._room.leave(each.member)
                if owner in clients and late:
                    asking = asyncio.create_task(self._ask(owner, clients[owner], late), name="late refusals of a user")
                    self._asking.add(asking)
                    asking.add_done_callback(self._asking.discard)
                elif late:
                    self._waiting[owner] = late
        self._looking = None

    async def _ask(self, owner: Hashable, client: DoorClient, late: list[_Late]) -> None:
        """Acks about which no worker has said anything wait again."""
        may_send, again = dict[str, bool | None](), list[_Late]()
        for each in late:
            if each.stream not in may_send:
                may_send[each.stream] = await _may_send(client, each)
            if may_send[each.stream] is None:
                again.append(each)
                continue
            self._room.leave(each.member)
            if may_send[each.stream]:
                try:
                    each.send()
                except Exception:
                    _log.exception("a late refusal")
        if again:
            self._wait(owner, again)


async def _may_send(client: DoorClient, late: _Late) -> bool | None:
    """None: no worker has said so."""
    try:
        async with asyncio.timeout_at(late.end_s):
            await client.command(COMMAND, RequireRight(Right.SEND, (late.stream,)))
    except (WorkerLostError, TimeoutError):
        return None
    except ShardError:
        return False
    except Exception:
        _log.exception("the right to send to %s", late.stream)
        return False
    return True


def _stays() -> None:
    raise AssertionError("an ack that waits does not give way")
