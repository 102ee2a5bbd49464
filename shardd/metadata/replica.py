"""The metadata on every shard but 0: a copy that follows the log.

A replica loads snapshot and log from the disk, then says HELLO to shard 0 with the index and digest it has got to, gets
what is missing, and applies every record that follows. It never guesses: a gap or a digest that does not match makes it
ask again, and records that shard 0 does not know make it give up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from shardd.metadata import messages
from shardd.metadata.apply import ApplyError
from shardd.metadata.commands import Command, Ref, encode_command
from shardd.metadata.deletions import DELETION_WAIT_S, DELETIONS, DELETIONS_SENT_MAX
from shardd.metadata.load import load_snapshot, load_state
from shardd.metadata.records import HEADER, RecordError, UnknownCommandError, decode_record
from shardd.metadata.service import INLINE_BYTES, Metadata, Result, apply_beside, beside_when, is_large
from shardd.metadata.state import State
from shardd.protocol.errors import Status
from shardd.runtime.channel import CONTROL_SHARD, BusError, Channel, PeerLost, Senders
from shardd.runtime.clock import RandomBits, random_bits
from shardd.runtime.disk import Disk
from shardd.runtime.fair_turns import FairTurns
from shardd.runtime.threads import Threads

HELLO_TIMEOUT_S: Final = 5.0
HELLO_RETRY_INTERVAL_MS: Final = 20
STATES_KEPT: Final = 64  # for the answers to submissions that later records overtake
APPLY_TIMEOUT_S: Final = 60.0  # from the answer to a submission until its record is here: a device may stand still

_log = logging.getLogger(__name__)


class MetadataReplica(Metadata):
    """`diverged(sentence)` is called when this replica holds records that shard 0 does not have: what was done because
    of them cannot be undone in place, so the worker has to end and start anew."""

    def __init__(
        self,
        path: Path,
        channel: Channel,
        threads: Threads,
        diverged: Callable[[str], None],
        *,
        disk: Disk | None = None,
        random_bits: RandomBits = random_bits,
    ) -> None:
        super().__init__()
        self._path = path
        self._channel = channel
        self._threads = threads
        self._diverged = diverged
        self._disk = disk
        self._random_bits = random_bits
        self._started = False
        self._deletions = FairTurns(DELETIONS_SENT_MAX)
        self._recent: OrderedDict[int, State] = OrderedDict()
        self._applied = asyncio.Event()  # set at the next record
        self._catching_up: asyncio.Task[None] | None = None
        self._hello_due = False  # since the last one shard 0 has started anew, or asked for another
        self._applying = asyncio.Lock()  # one record after the other, each followed to its end

    async def start(self) -> None:
        """Returns when this replica has everything that shard 0 has. Raises LogError, ApplyError."""
        self.state = await self._threads.run(load_state, self._path, self._disk)
        self._channel.serve(messages.METHOD_APPLY, Senders.CONTROL_SHARD, self._on_apply)
        self._channel.serve(messages.METHOD_RESYNC, Senders.CONTROL_SHARD, self._on_resync)
        self._channel.watch(self._peer_changed)
        await self._catch_up()
        self._started = True

    async def submit(self, user: Ref, command: Command) -> Result:
        if not isinstance(command, DELETIONS):
            return await self._submit(user, command)
        async with AsyncExitStack() as place:
            try:
                async with asyncio.timeout(DELETION_WAIT_S):
                    await place.enter_async_context(self._deletions.turn((str(user.id),)))
            except TimeoutError:
                return Result(Status.CANNOT_DELETE_FILE, 0, self.state)
            return await self._submit(user, command)

    async def _submit(self, user: Ref, command: Command) -> Result:
        encoded = await beside_when(self._threads, is_large(command), encode_command, command)
        submission = messages.Submission(self._random_bits(64), user, encoded)
        try:
            payload = await self._channel.request(CONTROL_SHARD, messages.METHOD_SUBMIT, messages.encode(submission))
        except PeerLost:
            raise
        except BusError as error:
            _log.warning("shard 0 did not take a change of the metadata: %s", error)
            return Result(Status.SHARD_COMMUNICATION_ERROR, 0, self.state)
        answer = messages.decode_submission_answer(payload)
        if answer.status != Status.OK:
            return Result(answer.status, 0, self.state)
        try:
            async with asyncio.timeout(APPLY_TIMEOUT_S):
                while self.state.index < answer.index:
                    await self._applied.wait()
        except TimeoutError:
            _log.error("record %d of the metadata was acknowledged, but did not arrive here", answer.index)
            return Result(Status.SHARD_COMMUNICATION_ERROR, 0, self.state)
        return Result(Status.OK, answer.id, self._recent.get(answer.index, self.state))

    async def close(self) -> None:
        task, self._catching_up = self._catching_up, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _peer_changed(self, shard: int, up: bool) -> None:
        if shard == CONTROL_SHARD and up:
            self._hello_due = True
            self._start_catch_up()

    def _start_catch_up(self) -> asyncio.Task[None]:
        """The running catch-up, or a new one."""
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._say_hello(), name="metadata catch-up")
        return self._catching_up

    async def _catch_up(self) -> None:
        await asyncio.shield(self._start_catch_up())

    async def _say_hello(self) -> None:
        while True:
            state, self._hello_due = self.state, False
            hello = messages.Hello(state.index, state.digest)
            try:
                payload = await self._channel.request(
                    CONTROL_SHARD, messages.METHOD_HELLO, messages.encode(hello), HELLO_TIMEOUT_S
                )
                answer = messages.decode_hello_answer(payload)
                if not answer.diverged and not answer.behind:
                    for data in answer.records:
                        await self._apply(data)
                    if answer.complete and not self._hello_due:  # else it may be of a shard 0 that has died since
                        return
            except (BusError, RecordError) as error:
                _log.debug("no answer of shard 0 to HELLO: %s", error)
                await asyncio.sleep(HELLO_RETRY_INTERVAL_MS / 1000)
                continue
            except (ApplyError, UnknownCommandError) as error:
                if not self._started:
                    raise
                self._diverged(f"a record of shard 0 cannot be followed here: {error}")
                return
            if answer.behind and self._started:  # more than RECORDS_KEPT records: it was not following at all
                self._diverged(f"shard 0 has cut away what follows record {state.index} of the metadata")
                return
            if answer.behind:
                self._recent.clear()
                self.state = await self._threads.run(load_state, self._path, self._disk)
                await asyncio.sleep(HELLO_RETRY_INTERVAL_MS / 1000)
                continue
            if answer.diverged and self._started:
                self._diverged(f"shard 0 does not have record {state.index} of the metadata as it is here")
                return
            if answer.diverged:
                # The log holds a record that shard 0 has not acknowledged, and perhaps cannot cut off: take all that a
                # snapshot does not cover from shard 0. It has cut away what older ones would need.
                self._recent.clear()
                self.state = await self._threads.run(load_snapshot, self._path, self._disk)

    async def _apply(self, data: bytes) -> None:
        """Applies an encoded record and follows it, unless it was applied before. RecordError when it is not the next
        one of the chain."""
        async with self._applying:
            if len(data) >= HEADER.size and self._has(HEADER.unpack_from(data)[1], data):
                return
            place = 0, self.state.digest, self.state.index + 1
            large = len(data) > INLINE_BYTES
            record, _ = await beside_when(self._threads, large, decode_record, memoryview(data), *place)
            new = await apply_beside(self._threads, self.state, record)
            self._recent[new.index] = new
            if len(self._recent) > STATES_KEPT:
                self._recent.popitem(last=False)
            await self._publish(new, record)
            self._applied.set()
            self._applied = asyncio.Event()

    async def _on_apply(self, sender: int, payload: bytes) -> bytes:
        """Answers when the record is applied: at once, or after asking shard 0 for what is missing before it."""
        index: int = HEADER.unpack_from(payload)[1]
        if self._catching_up is not None and not self._catching_up.done():
            await self._catch_up()
        if index <= self.state.index + 1:  # that it is applied is not enough: it has to be followed
            try:
                await self._apply(payload)
            except RecordError as error:
                _log.warning("asking shard 0 again: %s", error)
        if not self._has(index, payload):
            await self._catch_up()
        if not self._has(index, payload):
            raise RecordError(f"record {index} cannot follow record {self.state.index} of this replica")
        return b""

    def _has(self, index: int, payload: bytes) -> bool:
        """Whether this very record was applied; one of long ago is proven by the chain of the later ones."""
        if index > self.state.index:
            return False
        known = self.state if index == self.state.index else self._recent.get(index)
        return known is None or payload.endswith(known.digest)

    async def _on_resync(self, sender: int, payload: bytes) -> bytes:
        self._hello_due = True
        await self._catch_up()
        return b""
