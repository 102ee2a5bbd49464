"""The one writer of the metadata, on shard 0.

Commands are taken one at a time: checked, stored durably, applied here, sent to every live shard, and answered when all
of them have applied it. A shard that does not answer is waited for until it does or is reported dead; one that hangs
is killed by its heartbeat, so no client waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from shardd.metadata import messages
from shardd.metadata.apply import apply, created_id
from shardd.metadata.commands import Command, Ref, decode_command
from shardd.metadata.compaction import Compaction, Limits
from shardd.metadata.deletions import DELETIONS, Gate
from shardd.metadata.followers import Followers
from shardd.metadata.load import records_behind
from shardd.metadata.records import RecordError, encode_record
from shardd.metadata.reserve import Reserve
from shardd.metadata.service import INLINE_BYTES, Metadata, Result, apply_beside, beside_when, is_large
from shardd.metadata.snapshot import Submission, read_snapshot, snapshot_path
from shardd.metadata.state import State
from shardd.metadata.validate import validate_effect, validate_existence, validate_values
from shardd.metadata.wal import AppendError, MetadataLog
from shardd.protocol.errors import Status
from shardd.runtime.channel import Channel, Senders
from shardd.runtime.clock import Clock, RandomBits, SystemClock, random_bits
from shardd.runtime.disk import Disk, OsDisk, remove_quietly
from shardd.runtime.threads import Threads

SUBMISSIONS_MAX: Final = 1024  # waiting for the writer; later ones wait for a place
SUBMISSIONS_REMEMBERED: Final = 4096  # whose answer is known when they are sent again
CLOSE_TIMEOUT_S: Final = 2.0  # for the change at work, whose replicas may be stopping too
CATCH_UP_BYTES: Final = 256 * 1024  # records in one answer to a HELLO

Authorize = Callable[[State, Ref, Command], bool]
_log = logging.getLogger(__name__)


class _Waiting(msgspec.Struct):
    """A submission on its way. `trusted`: from the server itself, before anybody can log in."""

    number: int
    user: Ref
    command: Command
    answer: asyncio.Future[Result]
    trusted: bool = False
    index: int = 0


class MetadataWriter(Metadata):
    """`authorize(state, user, command)` tells whether the permissions of this very user allow a command. `hear()` has
    the channel follow every death that was reported: a replica's HELLO must not overtake that of its predecessor."""

    def __init__(
        self,
        path: Path,
        channel: Channel,
        threads: Threads,
        authorize: Authorize,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        limits: Limits | None = None,
        random_bits: RandomBits = random_bits,
        hear: Callable[[], None] = lambda: None,
        compaction_due: Callable[[], object] | None = None,
        deletions: Gate | None = None,
    ) -> None:
        """`compaction_due` is called when somebody is to `compact`; None: the writer does it at once by itself.
        `deletions` is entered around each change that moves files to the trash, before it stands in line."""
        super().__init__()
        self._path = path
        self._channel = channel
        self._threads = threads
        self._authorize = authorize
        self._clock = clock or SystemClock()
        self._disk = disk
        self._followers = Followers(channel)
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(SUBMISSIONS_MAX)
        self._done: OrderedDict[int, Submission] = OrderedDict()  # by number
        self._log: MetadataLog | None = None
        self._task: asyncio.Task[None] | None = None
        limits = limits or Limits()
        self._random_bits = random_bits
        self._hear = hear
        self._reserve = Reserve(path.parent, disk, limits.reserve_bytes)
        self._appending = asyncio.Lock()
        self._compaction = Compaction(path, threads, disk, self._appending, limits)
        self._compacting: asyncio.Task[None] | None = None
        self._compaction_due = compaction_due or self._compact
        self._deletions = deletions

    async def start(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Loads the log, makes the changes of `prepare`, and only then serves the other shards: none of them gets to
        know a state without them. Raises LogError, ApplyError when the log cannot be used."""
        self._log, self.state = await self._threads.run(self._load)
        self._task = asyncio.create_task(self._run(), name="metadata writer")
        if prepare is not None:
            await prepare()
        self._channel.serve(messages.METHOD_HELLO, Senders.ANY_SHARD, self._on_hello)
        self._channel.serve(messages.METHOD_SUBMIT, Senders.ANY_SHARD, self._on_submit)
        self._channel.watch(self._followers.peer_changed)
        self._compact_if_due()

    async def submit(self, user: Ref, command: Command) -> Result:
        return (await self._submit(self._random_bits(64), user, command)).answer.result()

    async def bootstrap(self, user: Ref, command: Command) -> Result:
        """A change by the server itself, before other shards are served (`start`): needs no permission."""
        return (await self._submit(self._random_bits(64), user, command, trusted=True)).answer.result()

    async def close(self) -> None:
        """Ends after the change that is at work; the ones that wait are refused with 8."""
        task, self._task = self._task, None
        if task is None or self._log is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while not self._queue.empty():
            self._refuse(self._queue.get_nowait(), Status.DISCONNECTED)
        if self._compacting is not None:
            await asyncio.wait((self._compacting,), timeout=CLOSE_TIMEOUT_S)
        await self._threads.run(self._log.close)

    async def room_returned(self) -> None:
        """The disk is no longer full: the room that is kept for changes on a full disk is taken again."""
        await self._threads.run(self._reserve.make)

    def _load(self) -> tuple[MetadataLog, State]:
        disk = self._disk or OsDisk()
        for name in (self._path.name, snapshot_path(self._path).name):  # what a crash left; they may hold needed room
            remove_quietly(disk, self._path.with_name(name + ".tmp"))
        snapshot = read_snapshot(snapshot_path(self._path), disk)
        log, content = MetadataLog.open(self._path, disk, self._reserve)
        try:
            state = snapshot.state
            for number, index, new_id in snapshot.submissions:
                self._remember(number, index, new_id)
            self._compaction.started(snapshot)
            for record in records_behind(self._path, snapshot, content):
                self._remember(record.submission, record.index, created_id(state, record.command))
                state = apply(state, record)
        except Exception:
            log.close()
            raise
        self._reserve.make()
        return log, state

    async def compact(self) -> None:
        """Returns when the log is short enough. Who is cancelled here leaves the rest to `close`: between the new log
        and its adoption nothing may be appended to the old one."""
        work = self._compact()
        if work is not None:
            await asyncio.shield(work)

    def _compact(self) -> asyncio.Task[None] | None:
        log = self._log
        if log is not None and self._task is not None and self._compaction_wanted(log):
            work = self._compaction.run(log, self.state, list(self._done.values()))
            self._compacting = asyncio.create_task(work, name="metadata compaction")
        return self._compacting

    def _compaction_wanted(self, log: MetadataLog) -> bool:
        return self._compaction.due(log) and (self._compacting is None or self._compacting.done())

    def _compact_if_due(self) -> None:
        if self._log is not None and self._compaction_wanted(self._log):
            self._compaction_due()

    async def _submit(self, number: int, user: Ref, command: Command, *, trusted: bool = False) -> _Waiting:
        """The submission with its answer."""
        waiting = _Waiting(number, user, command, asyncio.get_running_loop().create_future(), trusted)
        if self._deletions is None or trusted or not isinstance(command, DELETIONS):
            return await self._stand_in_line(waiting)
        async with self._deletions(user.id) as status:
            if status == Status.OK:
                return await self._stand_in_line(waiting)
            self._refuse(waiting, status)
            return waiting

    async def _stand_in_line(self, waiting: _Waiting) -> _Waiting:
        if self._task is None:
            self._refuse(waiting, Status.DISCONNECTED)
            return waiting
        await self._queue.put(waiting)
        if self._task is None:  # closed while the queue was full
            self._refuse(waiting, Status.DISCONNECTED)
        await asyncio.shield(waiting.answer)
        return waiting

    def _refuse(self, waiting: _Waiting, status: Status) -> None:
        if not waiting.answer.done():
            waiting.answer.set_result(Result(status, 0, self.state))

    async def _run(self) -> None:
        while True:
            waiting = await self._queue.get()
            # A change at work is brought to its end even when the server stops: its record may be on the disk.
            work = asyncio.ensure_future(self._process(waiting))
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait((work,), timeout=CLOSE_TIMEOUT_S)
                work.cancel()
                self._refuse(waiting, Status.DISCONNECTED)
                raise
            except Exception:
                _log.exception("a change of the metadata failed")
                self._refuse(waiting, Status.ERROR)

    async def _process(self, waiting: _Waiting) -> None:
        """Answers one submission."""
        assert self._log is not None
        if waiting.number in self._done:
            await self._answer_again(self._log, waiting)
            return
        state, command = self.state, waiting.command
        status = self._check(waiting)
        if status != Status.OK:
            self._refuse(waiting, status)
            return
        try:
            place = state.digest, state.index + 1, self._clock.now_us(), waiting.number, waiting.user.id
            data, record = await beside_when(self._threads, is_large(command), encode_record, *place, command)
            new_id = created_id(state, command)
            new_state = await apply_beside(self._threads, state, record)  # before it is stored: it may fail
            async with self._appending:
                await self._threads.run(self._log.append, data)
        except RecordError as error:
            _log.warning("%s", error)
            self._refuse(waiting, Status.CANNOT_SERIALIZE_RESOURCE)
            return
        except AppendError as error:
            _log.error("%s", error)
            self._refuse(waiting, error.status)
            return
        self._remember(waiting.number, record.index, new_id)
        replicated = self._followers.replicate(data, wait=not waiting.trusted)
        await asyncio.gather(self._publish(new_state, record), replicated)
        waiting.index = record.index
        waiting.answer.set_result(Result(Status.OK, new_id, new_state))
        self._compact_if_due()

    async def _answer_again(self, log: MetadataLog, waiting: _Waiting) -> None:
        """The submission was done before its sender saw an answer: by the shard 0 that died, perhaps not everywhere."""
        _, waiting.index, new_id = self._done[waiting.number]
        # a record that was cut away had reached every replica before
        for data in log.read_after(waiting.index - 1, 0) if waiting.index > log.base else []:
            await self._followers.replicate(data, wait=True)
        waiting.answer.set_result(Result(Status.OK, new_id, self.state))

    def _check(self, waiting: _Waiting) -> Status:
        """The order of the protocol: values, existence, permission, effect (docs/protocol/framing.md#checks)."""
        command = waiting.command
        status = validate_values(command) or validate_existence(self.state, command)
        if status == Status.OK and not waiting.trusted and not self._authorize(self.state, waiting.user, command):
            status = Status.UNAUTHORIZED
        return status or validate_effect(self.state, command)

    def _remember(self, number: int, index: int, new_id: int) -> None:
        self._done[number] = (number, index, new_id)
        if len(self._done) > SUBMISSIONS_REMEMBERED:
            self._done.popitem(last=False)

    async def _on_submit(self, sender: int, payload: bytes) -> bytes:
        submission = messages.decode_submission(payload)
        large = len(payload) > INLINE_BYTES
        command = await beside_when(self._threads, large, decode_command, submission.command)
        waiting = await self._submit(submission.number, submission.user, command)
        result = waiting.answer.result()
        return messages.encode(messages.SubmissionAnswer(int(result.status), result.id, waiting.index))

    async def _on_hello(self, sender: int, payload: bytes) -> bytes:
        """What a replica is missing. From the complete answer on it gets every record: nothing awaits in between."""
        assert self._log is not None
        self._hear()
        hello = messages.decode_hello(payload)
        last = self.state.index
        if hello.index < self._log.base:
            return messages.encode(messages.HelloAnswer([], complete=False, behind=True))
        if hello.index > last or self._log.digest_at(hello.index) != hello.digest:
            return messages.encode(messages.HelloAnswer([], complete=False, diverged=True))
        records = self._log.read_after(hello.index, CATCH_UP_BYTES)[: last - hello.index]
        complete = hello.index + len(records) == last
        if complete:
            self._followers.add(sender)
        return messages.encode(messages.HelloAnswer(records, complete=complete))
