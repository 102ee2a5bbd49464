"""Tasks that the server does for the Liftbridge door in its own name: the namespace and the internal streams of the
door and their messages, automatic pauses, the end of silent members, and the list of all streams for the door."""

from __future__ import annotations

import secrets
import string
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from shardd.config.liftbridge import Liftbridge as Settings
from shardd.engine.calls import Answer, Place, Reader
from shardd.metadata import Metadata
from shardd.metadata.commands import (
    Command,
    CreateLiftbridgeStream,
    CreateStream,
    LeaveLiftbridgeGroup,
    PauseLiftbridgeStream,
    PrepareLiftbridge,
)
from shardd.metadata.liftbridge import is_home
from shardd.metadata.liftbridge_runs import partitions_in
from shardd.metadata.liftbridge_state import Activity
from shardd.metadata.state import Partition, Stream
from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.protocol.liftbridge.requests import (
    ActivityOp,
    Event,
    GroupInfo,
    Prepared,
    Published,
    StreamInfo,
    UsersThere,
)
from shardd.protocol.primitives import Compression, ConsumerKind, PollingKind
from shardd.protocol.topic_setting_table import settings_of_new
from shardd.runtime.aside import beside
from shardd.runtime.channel import BusError
from shardd.runtime.slices import Slices
from shardd.security import ROOT_USER_ID, Rule
from shardd.service import base
from shardd.service.bounds import BoundsService
from shardd.service.identity import Identity
from shardd.service.liftbridge.groups import without_assignments
from shardd.service.liftbridge.lookup import LISTED_MAX, Found, describe, every_place, found_of, require_found
from shardd.service.liftbridge.publish import LiftbridgePublishService, check_batch
from shardd.service.liftbridge.settings import message_expiry_us, topic_settings_of
from shardd.service.liftbridge.streams import topic_name
from shardd.service.messages import PolledMessages
from shardd.service.partition_requests import PartitionRequests, raise_refusal, require_numbers
from shardd.service.topics import Keep, Kept
from shardd.service.users import user_ref

CURSORS: Final = "__cursors"
ACTIVITY: Final = "__activity"
SERVER_ID_SIGNS: Final = 22
_SIGNS: Final = string.ascii_letters + string.digits
_CURSORS_KEPT: Final = {
    "retentionMaxAge": 0,
    "retentionMaxBytes": 0,
    "retentionMaxMessages": requests.CURSOR_RECORDS_MAX,
    "segmentMaxBytes": requests.CURSOR_SEGMENT_BYTES,
}
_EXISTS: Final = (Status.OK, Status.STREAM_NAME_ALREADY_EXISTS, Status.TOPIC_NAME_ALREADY_EXISTS)
_NO_READER: Final = Reader(ConsumerKind.CONSUMER, 0)


class LiftbridgeTasks:
    """Lives on the loop thread. Every function takes its request of shardd/protocol/liftbridge/requests.py."""

    def __init__(
        self,
        metadata: Metadata,
        settings: Settings,
        publishing: LiftbridgePublishService,
        asked: PartitionRequests,
        bounds: BoundsService,
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._publishing = publishing
        self._requests = asked
        self._bounds = bounds
        self._slices = Slices()

    async def prepare(self, request: requests.Prepare) -> Prepared:
        """What is there stays as it is: settings of earlier starts, too."""
        namespace = self._settings.namespace
        if namespace not in self._metadata.state.stream_ids:
            await self._change(CreateStream(namespace), _EXISTS)
        state = self._metadata.state
        home = state.streams[state.stream_ids[namespace]]
        if not is_home(state, home) or not state.liftbridge.server_id:
            server_id = "".join(secrets.choice(_SIGNS) for _ in range(SERVER_ID_SIGNS))
            await self._change(PrepareLiftbridge(base.stream_ref(home), server_id))
        if self._settings.activity:
            await self._make_own(home, ACTIVITY, "activity", 1)
        if self._settings.cursors_partitions:
            await self._make_own(home, CURSORS, "cursors", self._settings.cursors_partitions)
        return Prepared(self._settings.server_id or self._metadata.state.liftbridge.server_id)

    async def _make_own(self, home: Stream, name: str, subject: str, partitions: int) -> None:
        """Cursors are kept by number, since the door writes them again; activity as other streams keep theirs."""
        state = self._metadata.state
        if name in state.liftbridge.names:
            return
        asked = _CURSORS_KEPT if name == CURSORS else {}
        command = CreateLiftbridgeStream(
            stream=base.stream_ref(home),
            name=topic_name(state.streams[home.id], name),
            partitions_count=partitions,
            compression=Compression.NONE,
            message_expiry_us=message_expiry_us(asked, self._settings.streams),
            max_topic_size_bytes=limits.UNLIMITED,
            replication_factor=1,
            retention=True,
            settings=settings_of_new(topic_settings_of(asked, self._settings.streams)),
            title=name,
            subject=f"{self._settings.namespace}.{subject}",
            attributes=tuple(asked.items()),
        )
        await self._change(command, _EXISTS)

    async def all_streams(self, request: requests.AllStreams, keep: Keep[StreamInfo, Kept]) -> list[Kept]:
        """LISTED_MAX at most, the namespace first."""
        state, kept = self._metadata.state, list[Kept]()

        def steps() -> Iterator[None]:
            for place in every_place(state, self._settings):
                if place is None:
                    yield
                    continue
                made = list[StreamInfo]()
                yield from describe(state, found_of(state, *place), made)
                kept.append(keep(made[0]))
                if len(kept) >= LISTED_MAX:
                    return

        await self._slices.run(steps())
        return kept

    async def all_groups(self, request: requests.AllGroups, keep: Keep[GroupInfo, Kept]) -> list[Kept]:
        groups, kept = self._metadata.state.liftbridge.groups, list[Kept]()

        def steps() -> Iterator[None]:
            for name in sorted(groups):
                kept.append(keep(without_assignments(groups[name])))
                yield

        await self._slices.run(steps())
        return kept

    async def all_users(self, request: requests.AllUsers) -> UsersThere:
        state, found = self._metadata.state, list[int]()

        def steps() -> Iterator[None]:
            for user in state.users.values():
                found.append(user.incarnation)
                yield

        await self._slices.run(steps())
        return UsersThere(state.index, found)

    async def publish(self, request: requests.InternalPublish) -> Published:
        """2010, 3007, and what a send is refused with."""
        found = self._own(request.name)
        check_batch(request.count, request.batch)
        require_numbers(limits.U32_MAX, request.partition)
        command = requests.Publish(
            stream_id=found.stream.id,
            topic_id=found.topic.id,
            incarnation=found.topic.incarnation,
            partition=request.partition,
            count=request.count,
            batch=request.batch,
        )
        return await self._publishing.append(self._server(), found, command)

    async def poll(self, request: requests.InternalPoll) -> PolledMessages:
        """2010, 3007, and what a poll is refused with. No offset is stored."""
        found = self._own(request.name)
        require_numbers(limits.U32_MAX, request.partition, request.count)
        require_numbers(limits.U64_MAX, request.offset)

        async def read(place: Place, _partition: Partition) -> Answer:
            return await self._requests.calls.read(
                place,
                _NO_READER,
                PollingKind.OFFSET,
                request.offset,
                request.count,
                auto_commit=False,
                bytes_max=limits.POLLED_BYTES_MAX,
            )

        names = found.stream.id, found.topic.id
        answer = await self._requests.ask(
            self._server(), Rule.POLL_MESSAGES, names, lambda topic: base.partition_of(topic, request.partition), read
        )
        raise_refusal(answer.status)
        return PolledMessages(request.partition, answer.current_offset, answer.messages_count, answer.records)

    async def pause_partitions(self, request: requests.PausePartitions) -> None:
        """2010, 3007; 3 without partitions."""
        found = require_found(self._metadata.state, self._settings, request.name)
        if not request.partitions:
            raise ShardError(Status.INVALID_COMMAND, "no partitions")
        refs = base.stream_ref(found.stream), base.topic_ref(found.topic)
        await self._change(PauseLiftbridgeStream(*refs, request.partitions, False))

    async def partition_ends(self, request: requests.PartitionEnds) -> list[int]:
        """2010, 3007; 3 for more than NAMES_MAX; 11001 while a partition is not open."""
        found = require_found(self._metadata.state, self._settings, request.name)
        if len(request.partitions) > requests.NAMES_MAX:
            raise ShardError(Status.INVALID_COMMAND, f"{len(request.partitions)} partitions")
        return [self._bounds.end_of(base.partition_of(found.topic, each)) for each in request.partitions]

    async def expire_member(self, request: requests.ExpireMember) -> None:
        """Nothing happens when the member is gone or the epoch is another one."""
        gone = (
            Status.OK,
            Status.RESOURCE_NOT_FOUND,
            Status.CONSUMER_GROUP_ID_NOT_FOUND,
            Status.CONSUMER_GROUP_MEMBER_NOT_FOUND,
        )
        await self._change(LeaveLiftbridgeGroup(request.group, request.consumer, True, request.epoch), gone)

    async def events(self, request: requests.Events, keep: Keep[Event, Kept]) -> list[Kept]:
        """Oldest first."""
        known, kept = self._metadata.state.liftbridge.events, list[Kept]()
        first = bisect_right(known, request.after_index, key=lambda event: event.index)

        def steps() -> Iterator[None]:
            for event in known[first:]:
                kept.append(keep(_told(event)))
                yield

        await self._slices.run(steps())
        return kept

    def _own(self, name: str) -> Found:
        """2010 for all but the streams of the server itself."""
        state = self._metadata.state
        found = require_found(state, self._settings, name)
        if name not in RESERVED_STREAMS or found.native:
            raise ShardError(Status.TOPIC_ID_NOT_FOUND, f"{name!r} is no stream of the server itself")
        return found

    def _server(self) -> Identity:
        root = self._metadata.state.users[ROOT_USER_ID]
        return Identity(root.id, root.incarnation)

    async def _change(self, command: Command, well: tuple[Status, ...] = (Status.OK,)) -> None:
        """`ShardError`."""
        try:
            with beside():
                result = await self._metadata.submit(user_ref(self._metadata.state.users[ROOT_USER_ID]), command)
        except BusError as error:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error
        if result.status not in well:
            raise ShardError(Status(result.status), type(command).__name__)


def _told(event: Activity) -> Event:
    return Event(
        event.index,
        ActivityOp(event.op),
        event.stream,
        partitions_in(event.partitions),
        event.flag,
        event.group,
        event.consumer,
        event.names,
    )
