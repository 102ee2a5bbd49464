"""From the state of an Apache Iggy log to an ordinary metadata log that gives the same state with the same ids.

The records are made by the same code that makes them for clients (`validate`, `encode_record`, `apply`). Ids are given
out densely, so an unused one is taken by a placeholder that is deleted again; then the highest unused id is the next
one, as in Iggy after a restart. The result depends on the entries and on the number in front of the first record alone:
an interrupted import is recognised by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from shardd.metadata import State, apply, commands, validate
from shardd.metadata.births import log_without_records
from shardd.metadata.commands import Command, Ref
from shardd.metadata.records import RecordError, encode_record
from shardd.migration.errors import MigrationError
from shardd.migration.iggy_model import ROOT_USER_ID, IggyGroup, IggyModel, IggyStream, IggyTopic, IggyUser
from shardd.protocol import limits
from shardd.protocol.errors import Status

_TOKENS_MAX: Final = 1 << 32  # what exists was allowed
Value = TypeVar("Value")


class Records:
    """The log as it grows, and the state that it gives."""

    def __init__(self, name: str, first: State) -> None:
        """`first`: the state in front of the first record."""
        self.first = first
        self.state = first
        self._name = name
        self._data = bytearray(log_without_records(first))

    @property
    def data(self) -> bytes:
        """The whole file `state.messages`."""
        return bytes(self._data)

    def add(self, timestamp_us: int, command: Command) -> None:
        """Raises MigrationError when this server does not allow what Iggy did."""
        status = validate(self.state, command)
        kind = type(command).__name__
        if status != Status.OK:
            raise MigrationError(
                f"{self._name} holds what this server cannot: {kind} {getattr(command, 'name', '')!r} is refused with "
                f"{Status(status).name}"
            )
        index = self.state.index + 1
        try:
            data, record = encode_record(self.state.digest, index, timestamp_us, index, ROOT_USER_ID, command)
        except RecordError as error:
            raise MigrationError(f"{self._name}: {kind}: {error}") from error
        self._data += data
        self.state = apply(self.state, record)


def make_records(model: IggyModel, name: str, first: State) -> Records:
    """The log for a model behind the state `first`; `name` is what sentences call Iggy's log. Raises MigrationError."""
    records = Records(name, first)
    if ROOT_USER_ID in model.users:
        _create_user(records, model.users[ROOT_USER_ID])
    _streams(records, model.streams)
    _users(records, model.users)
    for number, user in sorted(model.users.items()):
        ref = Ref(number, records.state.users[number].incarnation)
        for token_name, token in user.tokens.items():
            created = commands.CreateToken(ref, token_name, token.digest, token.expires_at_us, _TOKENS_MAX)
            records.add(user.created_at_us, created)
    return records


def _fill(
    values: Mapping[int, Value], first: int, create: Callable[[Value | None, str], None], delete: Callable[[int], None],
    names: Iterable[str],
) -> None:  # fmt: skip
    """Creates `values` in the order of their ids, a placeholder (None and an unused name) for each unused id."""
    taken = set(names)
    holes = [number for number in range(first, max(values, default=first)) if number not in values]
    for number in range(first, max(values, default=first - 1) + 1):
        create(values.get(number), _free_name(number, taken))
    for number in holes:
        delete(number)


def _free_name(number: int, taken: set[str]) -> str:
    name = f"unused-{number}"
    while name in taken:
        name += "-"
    return name


def _streams(records: Records, streams: dict[int, IggyStream]) -> None:
    def create(stream: IggyStream | None, name: str) -> None:
        if stream is None:
            records.add(0, commands.CreateStream(name))
        else:
            records.add(stream.created_at_us, commands.CreateStream(stream.name))

    def delete(number: int) -> None:
        records.add(0, commands.DeleteStream(Ref(number, records.state.streams[number].incarnation)))

    _fill(streams, 0, create, delete, [stream.name for stream in streams.values()])
    for number, stream in sorted(streams.items()):
        ref = Ref(number, records.state.streams[number].incarnation)
        _topics(records, ref, stream.topics)


def _topics(records: Records, stream: Ref, topics: dict[int, IggyTopic]) -> None:
    def create(topic: IggyTopic | None, name: str) -> None:
        if topic is None:
            records.add(0, commands.CreateTopic(stream, name, 0, 1, limits.UNLIMITED, limits.UNLIMITED, 1))
            return
        command = commands.CreateTopic(
            stream=stream,
            name=topic.name,
            partitions_count=topic.partitions[0][1],
            compression=topic.compression,
            message_expiry_us=topic.message_expiry_us or limits.UNLIMITED,
            max_topic_size_bytes=topic.max_topic_size_bytes or limits.UNLIMITED,
            replication_factor=topic.replication_factor or 1,
        )
        records.add(topic.created_at_us, command)

    def ref(number: int) -> Ref:
        return Ref(number, records.state.streams[stream.id].topics[number].incarnation)

    _fill(
        topics, 0, create, lambda number: records.add(0, commands.DeleteTopic(stream, ref(number))),
        [topic.name for topic in topics.values()],
    )  # fmt: skip
    for number, topic in sorted(topics.items()):
        for created_at_us, count in topic.partitions[1:]:
            records.add(created_at_us, commands.CreatePartitions(stream, ref(number), count))
        _groups(records, stream, ref(number), topic.groups)


def _groups(records: Records, stream: Ref, topic: Ref, groups: dict[int, IggyGroup]) -> None:
    def create(group: IggyGroup | None, name: str) -> None:
        created_at_us, name = (0, name) if group is None else (group.created_at_us, group.name)
        records.add(created_at_us, commands.CreateConsumerGroup(stream, topic, name))

    def delete(number: int) -> None:
        group = records.state.streams[stream.id].topics[topic.id].groups[number]
        records.add(0, commands.DeleteConsumerGroup(stream, topic, Ref(number, group.incarnation)))

    _fill(groups, 0, create, delete, [group.name for group in groups.values()])


def _create_user(records: Records, user: IggyUser) -> None:
    command = commands.CreateUser(user.name, user.password_hash, user.active, user.permissions)
    records.add(user.created_at_us, command)


def _users(records: Records, users: dict[int, IggyUser]) -> None:
    """All but root, who is the first record. They come behind the streams: deleted placeholders take no rights away."""

    def create(user: IggyUser | None, name: str) -> None:
        if user is None:
            records.add(0, commands.CreateUser(name, "", False, None))
        else:
            _create_user(records, user)

    def delete(number: int) -> None:
        records.add(0, commands.DeleteUser(Ref(number, records.state.users[number].incarnation)))

    others = {number: user for number, user in users.items() if number != ROOT_USER_ID}
    _fill(others, 1, create, delete, [user.name for user in users.values()])
