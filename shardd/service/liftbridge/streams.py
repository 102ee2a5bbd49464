"""Streams of Liftbridge: creates, deletes, pauses and lists them, and sets them read only
(shardd/protocol/liftbridge/requests.py, docs/adr/0092-liftbridge-metadata.md)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Final

from shardd.config.liftbridge import Liftbridge as Settings
from shardd.metadata import Metadata
from shardd.metadata.commands import (
    CreateLiftbridgeStream,
    DeleteTopic,
    PauseLiftbridgeStream,
    Ref,
    ResumeLiftbridgeStream,
    SetLiftbridgeReadonly,
)
from shardd.metadata.liftbridge_runs import is_on
from shardd.metadata.state import State, Stream
from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.primitives import Compression
from shardd.protocol.topic_setting_table import settings_of_new
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.liftbridge.lookup import (
    LISTED_MAX,
    Found,
    describe,
    every_place,
    find,
    found_of,
    may_see,
    permitted_by_name,
    require_change,
    require_permitted,
)
from shardd.service.liftbridge.settings import check_asked, message_expiry_us, topic_settings_of
from shardd.service.long_answers import LongAnswers
from shardd.service.topics import Keep, Kept

_DIGEST_SIGNS: Final = 16
_RULES: Final = {
    requests.Right.POLL: Rule.POLL_MESSAGES,
    requests.Right.SEND: Rule.SEND_MESSAGES,
    requests.Right.CHANGE: Rule.CHANGE_TOPIC,
}


class LiftbridgeStreamService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, settings: Settings, answers: LongAnswers) -> None:
        self._metadata = metadata
        self._settings = settings
        self._answers = answers

    async def create_stream(self, identity: Identity, request: requests.CreateStream) -> None:
        """5 for reserved names, 2015, 3 and 2 for settings, 1009 without a namespace (the door has not prepared it),
        41, 2013."""
        if request.name in RESERVED_STREAMS:
            raise ShardError(Status.FEATURE_UNAVAILABLE, "Stream is reserved")
        if not 1 <= request.partitions <= limits.PARTITIONS_PER_REQUEST_MAX:
            raise ShardError(Status.TOO_MANY_PARTITIONS)
        check_asked(request.settings)
        state = self._metadata.state
        home = _home(state)
        base.require(state, identity, Rule.CREATE_TOPIC, home)
        if find(state, self._settings, request.name) is not None:
            raise ShardError(Status.TOPIC_NAME_ALREADY_EXISTS)
        defaults = self._settings.streams
        command = CreateLiftbridgeStream(
            stream=base.stream_ref(home),
            name=topic_name(home, request.name),
            partitions_count=request.partitions,
            compression=Compression.NONE,
            message_expiry_us=message_expiry_us(request.settings, defaults),
            max_topic_size_bytes=limits.UNLIMITED,
            replication_factor=1,
            retention=True,
            settings=settings_of_new(topic_settings_of(request.settings, defaults)),
            title=request.name,
            subject=request.subject,
            queue_group=request.group,
            attributes=tuple(sorted(request.settings.items())),
        )
        await base.submit(self._metadata, identity, command)

    async def delete_stream(self, identity: Identity, request: requests.DeleteStream) -> None:
        """5 for reserved names, 41, 2010."""
        if request.name in RESERVED_STREAMS:
            raise ShardError(Status.FEATURE_UNAVAILABLE, "Stream is reserved")
        found = self._to_change(identity, request.name)
        await base.submit(self._metadata, identity, DeleteTopic(*_refs(found)))

    async def pause_stream(self, identity: Identity, request: requests.PauseStream) -> None:
        """41, 2010, 3007."""
        found = self._to_change(identity, request.name)
        command = PauseLiftbridgeStream(*_refs(found), request.partitions, request.resume_all)
        await base.submit(self._metadata, identity, command)

    async def resume_stream(self, identity: Identity, request: requests.ResumeStream) -> None:
        """41 unless the partition may be polled or sent to, 2010, 3007. Nothing happens to one that is not paused."""
        state, rules = self._metadata.state, (Rule.POLL_MESSAGES, Rule.SEND_MESSAGES)
        found = require_permitted(state, self._settings, identity, request.name, *rules)
        if not 0 <= request.partition < len(found.topic.partitions):
            raise ShardError(Status.PARTITION_NOT_FOUND)
        if is_on(found.attributes.paused, request.partition):
            command = ResumeLiftbridgeStream(*_refs(found), request.partition)
            await base.submit(self._metadata, identity, command)

    async def set_readonly(self, identity: Identity, request: requests.SetReadonly) -> None:
        """41, 2010, 3007. When it is answered no front end of the server appends to these partitions."""
        found = self._to_change(identity, request.name)
        command = SetLiftbridgeReadonly(*_refs(found), request.partitions, request.readonly)
        await base.submit(self._metadata, identity, command)

    async def require_right(self, identity: Identity, request: requests.RequireRight) -> None:
        """3 for too many names, 40, 41."""
        if len(request.names) > requests.NAMES_MAX:
            raise ShardError(Status.INVALID_COMMAND, f"{len(request.names)} names")
        state, rule = self._metadata.state, _RULES[request.right]
        for name in request.names or ("",):
            with contextlib.suppress(ShardError):
                permitted_by_name(state, self._settings, identity, name, rule)
                return
        _ = identity.user  # 40
        raise ShardError(Status.UNAUTHORIZED)

    async def list_streams(
        self, identity: Identity, request: requests.ListStreams, keep: Keep[StreamInfo, Kept]
    ) -> list[Kept]:
        """Those that the user may do something with; of all LISTED_MAX at most. 3 for too many names."""
        if len(request.names) > requests.NAMES_MAX:
            raise ShardError(Status.INVALID_COMMAND, f"{len(request.names)} names")
        _ = identity.user  # 40
        state, kept = self._metadata.state, list[Kept]()

        def steps() -> Iterator[None]:
            for found in self._chosen(state, request.names):
                if found is None or not may_see(state, identity, found.stream, found.topic):
                    yield
                    continue
                made = list[StreamInfo]()
                yield from describe(state, found, made)
                kept.append(keep(made[0]))
                if len(kept) >= LISTED_MAX:
                    return

        await self._answers.take(identity, steps())
        return kept

    def _chosen(self, state: State, names: tuple[str, ...]) -> Iterator[Found | None]:
        if names:
            yield from (find(state, self._settings, name) for name in dict.fromkeys(names))
            return
        for place in every_place(state, self._settings):
            yield None if place is None else found_of(state, *place)

    def _to_change(self, identity: Identity, name: str) -> Found:
        """41, 2010."""
        found = require_permitted(self._metadata.state, self._settings, identity, name, Rule.CHANGE_TOPIC)
        require_change(self._settings, found)
        return found


def topic_name(home: Stream, name: str) -> str:
    """That of the stream where a topic can have it; else as much of it as fits, with a digest of all of it."""
    if len(name.encode()) <= limits.NAME_BYTES_MAX and name not in home.topic_ids:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_SIGNS]
    return name.encode()[: limits.NAME_BYTES_MAX - _DIGEST_SIGNS - 1].decode(errors="ignore") + "~" + digest


def _home(state: State) -> Stream:
    """`ShardError` 1009."""
    if state.liftbridge.home is None:
        raise ShardError(Status.STREAM_ID_NOT_FOUND, "the namespace of Liftbridge is not prepared")
    return state.streams[state.liftbridge.home[0]]


def _refs(found: Found) -> tuple[Ref, Ref]:
    return base.stream_ref(found.stream), base.topic_ref(found.topic)
