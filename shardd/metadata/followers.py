"""Shard 0's view of the other shards: who is alive, who follows the log, and has every record reached them."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from shardd.metadata import messages
from shardd.runtime.channel import BusError, Channel

RETRY_INTERVAL_MS: Final = 50  # after a replica failed to apply a record

_log = logging.getLogger(__name__)


class _Follower:
    """`following`: it has said HELLO and got everything up to that moment, so it needs every record from then on."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.following = False
        self.changed = asyncio.Event()  # set at the next change of anything about this shard

    def change(self, following: bool) -> None:
        self.following = following
        self.changed.set()
        self.changed = asyncio.Event()


class Followers:
    """Every shard but 0. A shard that is up and has not said HELLO is waited for: it may serve readers already."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._followers = {shard: _Follower(shard) for shard in range(channel.shards) if shard != channel.shard}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, shard: int) -> None:
        """`shard` follows from now on. That it speaks proves that it is up, whatever was reported before."""
        self._followers[shard].change(following=True)
        self._channel.peer_up(shard)

    def peer_changed(self, shard: int, up: bool) -> None:
        """Watches the bus."""
        follower = self._followers[shard]
        if not up:
            follower.change(following=False)
        elif not follower.following:
            # Its HELLO came before the report of its predecessor's death, which took it off the list: ask for another.
            task = asyncio.create_task(self._ask_for_hello(shard))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def replicate(self, record: bytes, *, wait: bool) -> None:
        """Returns when every live shard has applied the encoded record.

        Without `wait` shards that do not follow yet are left out: they get it with the answer to their HELLO.
        """
        targets = [each for each in self._followers.values() if wait or each.following]
        await asyncio.gather(*(self._deliver(follower, record) for follower in targets))

    async def _deliver(self, follower: _Follower, record: bytes) -> None:
        while self._channel.is_up(follower.shard):
            changed = follower.changed
            if not follower.following:
                await changed.wait()
                continue
            request = asyncio.ensure_future(
                self._channel.request(follower.shard, messages.METHOD_APPLY, record, timeout_s=None)
            )
            change = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait((request, change), return_when=asyncio.FIRST_COMPLETED)
                if not request.done():
                    continue  # it died, or it said HELLO again: then it gets the record once more
                await request
                return
            except BusError as error:
                if self._channel.is_up(follower.shard):
                    _log.warning("shard %d did not apply a change of the metadata: %s", follower.shard, error)
                    await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            finally:
                request.cancel()
                change.cancel()

    async def _ask_for_hello(self, shard: int) -> None:
        try:
            await self._channel.request(shard, messages.METHOD_RESYNC, b"", timeout_s=None)
        except BusError as error:
            _log.info("shard %d was not asked to catch up: %s", shard, error)
