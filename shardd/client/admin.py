"""One method for each command of the protocol and the extensions, in both shapes. What each takes: `commands.py`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from shardd.client import commands, values
from shardd.client.commands import Command
from shardd.client.errors import ConsumerNameTakenError, GroupInUseError, ServerError, UnavailableError
from shardd.client.messages import Polled
from shardd.client.unused_offsets import unused_offsets
from shardd.client.wire import Identifier

P = ParamSpec("P")
T = TypeVar("T")


class Asking:
    """Who can ask."""

    async def call(self, command: Command[T], deadline_s: float | None = None) -> T:
        raise NotImplementedError


class AskingAndWaiting:
    """The same for threads."""

    def call(self, command: Command[T], deadline_s: float | None = None) -> T:
        raise NotImplementedError


def _unused(group: values.Group | None, stream: Identifier, topic: Identifier) -> None:
    if group is not None and group.members_count:
        raise GroupInUseError(
            f"group {group.name} of topic {stream}/{topic} has {group.members_count} members; "
            "stop them, or delete it with force=True"
        )


def _asked(build: Callable[P, Command[T]]) -> Callable[Concatenate[Asking, P], Coroutine[Any, Any, T]]:
    async def ask(self: Asking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(build(*args, **kwargs))

    ask.__name__, ask.__doc__ = build.__name__, build.__doc__
    return ask


def _waited(build: Callable[P, Command[T]]) -> Callable[Concatenate[AskingAndWaiting, P], T]:
    def ask(self: AskingAndWaiting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(build(*args, **kwargs))

    ask.__name__, ask.__doc__ = build.__name__, build.__doc__
    return ask


def _asked_by_name(build: Callable[P, Command[T]]) -> Callable[Concatenate[Asking, P], Coroutine[Any, Any, T]]:
    """Of what is stored for a consumer: not that of another name with the same number."""
    plain = _asked(build)

    async def ask(self: Asking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        look = _look_at_name(args, kwargs)
        if look is not None:
            try:
                await self.call(look)
            except ServerError as error:
                _passed(error)
        return await plain(self, *args, **kwargs)

    ask.__name__, ask.__doc__ = build.__name__, build.__doc__
    return ask


def _waited_by_name(build: Callable[P, Command[T]]) -> Callable[Concatenate[AskingAndWaiting, P], T]:
    plain = _waited(build)

    def ask(self: AskingAndWaiting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        look = _look_at_name(args, kwargs)
        if look is not None:
            try:
                self.call(look)
            except ServerError as error:
                _passed(error)
        return plain(self, *args, **kwargs)

    ask.__name__, ask.__doc__ = build.__name__, build.__doc__
    return ask


def _look_at_name(args: Sequence[object], kwargs: Mapping[str, object]) -> Command[Polled] | None:
    """Before a request about what is stored for a consumer: ConsumerNameTakenError if it belongs to another name with
    the same number. It reads nothing, and counts as no use. None: the request looks itself, or has no such name."""
    names = ("consumer", "stream", "topic", "partition")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    consumer, partition = given["consumer"], given.get("partition")
    if not isinstance(consumer, str) or given.get("group") or given.get("history") is not None:
        return None
    place = consumer, given["stream"], given["topic"], partition
    return commands.poll(*place, strategy=commands.OFFSET, count=0, bytes_max=0)


def _passed(error: ServerError) -> None:
    """Every other error is what the command itself is answered, or of a server that cannot tell names apart."""
    if isinstance(error, ConsumerNameTakenError | UnavailableError):
        raise error


class Administration(Asking):
    """For `asyncio`."""

    ping = _asked(commands.ping)
    stats = _asked(commands.stats)
    snapshot = _asked(commands.snapshot)
    cluster = _asked(commands.cluster)
    me = _asked(commands.me)
    connected = _asked(commands.connected)
    all_connected = _asked(commands.all_connected)
    user = _asked(commands.user)
    users = _asked(commands.users)
    create_user = _asked(commands.create_user)
    delete_user = _asked(commands.delete_user)
    update_user = _asked(commands.update_user)
    update_permissions = _asked(commands.update_permissions)
    change_password = _asked(commands.change_password)
    tokens = _asked(commands.tokens)
    create_token = _asked(commands.create_token)
    delete_token = _asked(commands.delete_token)
    poll = _asked(commands.poll)
    flush = _asked(commands.flush)
    stored_offset = _asked_by_name(commands.stored_offset)
    store_offset = _asked_by_name(commands.store_offset)
    delete_offset = _asked_by_name(commands.delete_offset)
    stream = _asked(commands.stream)
    streams = _asked(commands.streams)
    create_stream = _asked(commands.create_stream)
    delete_stream = _asked(commands.delete_stream)
    update_stream = _asked(commands.update_stream)
    purge_stream = _asked(commands.purge_stream)
    topic = _asked(commands.topic)
    topics = _asked(commands.topics)
    create_topic = _asked(commands.create_topic)
    delete_topic = _asked(commands.delete_topic)
    update_topic = _asked(commands.update_topic)
    purge_topic = _asked(commands.purge_topic)
    create_partitions = _asked(commands.create_partitions)
    delete_partitions = _asked(commands.delete_partitions)
    delete_segments = _asked(commands.delete_segments)
    group = _asked(commands.group)
    groups = _asked(commands.groups)
    create_group = _asked(commands.create_group)

    async def delete_group(
        self, stream: Identifier, topic: Identifier, name: Identifier, *, force: bool = False
    ) -> None:
        """With its stored offsets. GroupInUseError while it has members, without `force`."""
        if not force:
            _unused(await self.group(stream, topic, name), stream, topic)
        await self.call(commands.delete_group(stream, topic, name))

    extensions = _asked(commands.extensions)
    metrics = _asked(commands.metrics)
    bounds = _asked(commands.bounds)
    change_topic = _asked(commands.change_topic)
    set_topic_settings = _asked(commands.set_topic_settings)
    topic_settings = _asked(commands.topic_settings)
    lease_files = _asked(commands.lease_files)
    unused_offsets = _asked(unused_offsets)


class SyncAdministration(AskingAndWaiting):
    """For threads."""

    ping = _waited(commands.ping)
    stats = _waited(commands.stats)
    snapshot = _waited(commands.snapshot)
    cluster = _waited(commands.cluster)
    me = _waited(commands.me)
    connected = _waited(commands.connected)
    all_connected = _waited(commands.all_connected)
    user = _waited(commands.user)
    users = _waited(commands.users)
    create_user = _waited(commands.create_user)
    delete_user = _waited(commands.delete_user)
    update_user = _waited(commands.update_user)
    update_permissions = _waited(commands.update_permissions)
    change_password = _waited(commands.change_password)
    tokens = _waited(commands.tokens)
    create_token = _waited(commands.create_token)
    delete_token = _waited(commands.delete_token)
    poll = _waited(commands.poll)
    flush = _waited(commands.flush)
    stored_offset = _waited_by_name(commands.stored_offset)
    store_offset = _waited_by_name(commands.store_offset)
    delete_offset = _waited_by_name(commands.delete_offset)
    stream = _waited(commands.stream)
    streams = _waited(commands.streams)
    create_stream = _waited(commands.create_stream)
    delete_stream = _waited(commands.delete_stream)
    update_stream = _waited(commands.update_stream)
    purge_stream = _waited(commands.purge_stream)
    topic = _waited(commands.topic)
    topics = _waited(commands.topics)
    create_topic = _waited(commands.create_topic)
    delete_topic = _waited(commands.delete_topic)
    update_topic = _waited(commands.update_topic)
    purge_topic = _waited(commands.purge_topic)
    create_partitions = _waited(commands.create_partitions)
    delete_partitions = _waited(commands.delete_partitions)
    delete_segments = _waited(commands.delete_segments)
    group = _waited(commands.group)
    groups = _waited(commands.groups)
    create_group = _waited(commands.create_group)

    def delete_group(self, stream: Identifier, topic: Identifier, name: Identifier, *, force: bool = False) -> None:
        """With its stored offsets. GroupInUseError while it has members, without `force`."""
        if not force:
            _unused(self.group(stream, topic, name), stream, topic)
        self.call(commands.delete_group(stream, topic, name))

    extensions = _waited(commands.extensions)
    metrics = _waited(commands.metrics)
    bounds = _waited(commands.bounds)
    change_topic = _waited(commands.change_topic)
    set_topic_settings = _waited(commands.set_topic_settings)
    topic_settings = _waited(commands.topic_settings)
    lease_files = _waited(commands.lease_files)
    unused_offsets = _waited(unused_offsets)
