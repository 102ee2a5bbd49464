"""The state as a snapshot holds it: MessagePack arrays. Lists are ascending by id; what a map can tell again (names,
owners of tokens) is left out. Partitions that follow each other in one record and in their slots are one
`PartitionRun`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from immutables import Map

from shardd.metadata.commands import plain_map, typed_map
from shardd.metadata.group_shares import counted_groups
from shardd.metadata.snapshot_liftbridge import LiftbridgeImage, liftbridge_image, with_liftbridge
from shardd.metadata.state import (
    EMPTY,
    ConsumerGroup,
    Partition,
    Permissions,
    Producer,
    State,
    Stream,
    Token,
    Topic,
    User,
)
from shardd.metadata.validate import PARTITIONS_MAX, SLOTS_MAX, STREAMS_MAX, TOPICS_MAX
from shardd.protocol.errors import Status
from shardd.protocol.topic_setting_table import check_stored

INDEX_MAX: Final = 2**63 - 1

Submission = tuple[int, int, int]


class PartitionRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`count` partitions with consecutive ids and slots."""

    count: int
    created_at_us: int
    incarnation: int
    slot: int


class GroupImage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    name: str
    created_at_us: int
    incarnation: int
    owner: int = 0  # in every version: with a program that does not know it the group counts for no user


class TopicImage(msgspec.Struct, array_like=True, frozen=True):
    id: int
    name: str
    created_at_us: int
    incarnation: int
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    partitions: list[PartitionRun]
    groups: list[GroupImage]
    free_group_ids: tuple[int, ...]
    settings: dict[str, str] = {}  # not in version 1


class StreamImage(msgspec.Struct, array_like=True, frozen=True):
    id: int
    name: str
    created_at_us: int
    incarnation: int
    topics: list[TopicImage]
    free_topic_ids: tuple[int, ...]


class TokenImage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    digest: bytes
    expires_at_us: int


class UserImage(msgspec.Struct, array_like=True, frozen=True):
    id: int
    name: str
    created_at_us: int
    active: bool
    password_hash: str
    permissions: Permissions | None
    incarnation: int
    tokens: list[TokenImage]
    revoked: list[tuple[bytes, int]] = []  # in version 3
    access_mark: int = 0
    producers: list[tuple[int, int, int, int]] = []  # in version 4: id, epoch, begun, renewed
    kept_access: bytes = b""  # in every version: a program that does not know it ends one token more


class Image(msgspec.Struct, array_like=True, frozen=True):
    streams: list[StreamImage]
    free_stream_ids: tuple[int, ...]
    users: list[UserImage]
    free_user_ids: tuple[int, ...]
    free_slots: tuple[int, ...]
    next_slot: int
    submissions: list[Submission]
    liftbridge: LiftbridgeImage | None = None  # in version 5


_encoder = msgspec.msgpack.Encoder(enc_hook=plain_map)
_decoder = msgspec.msgpack.Decoder(Image, dec_hook=typed_map)


def encode_image(state: State, submissions: Iterable[Submission]) -> bytes:
    image = Image(
        streams=[_stream_image(state.streams[number]) for number in sorted(state.streams)],
        free_stream_ids=state.free_stream_ids,
        users=[_user_image(state.users[number]) for number in sorted(state.users)],
        free_user_ids=state.free_user_ids,
        free_slots=state.free_slots,
        next_slot=state.next_slot,
        submissions=list(submissions),
        liftbridge=liftbridge_image(state),
    )
    return _encoder.encode(image)


def decode_image(data: bytes | memoryview, index: int, digest: bytes) -> tuple[State, list[Submission]]:
    """Raises msgspec.MsgspecError for what is not an image."""
    image = _decoder.decode(data)
    _check_ranges(image)
    users = {each.id: _user(each) for each in image.users}
    owners = {token.digest: (user.id, token.name) for user in users.values() for token in user.tokens.values()}
    streams = {each.id: _stream(each) for each in image.streams}
    state = State(
        index=index,
        digest=digest,
        streams=Map(streams),
        stream_ids=Map({stream.name: stream.id for stream in streams.values()}),
        free_stream_ids=image.free_stream_ids,
        users=Map(users),
        user_ids=Map({user.name: user.id for user in users.values()}),
        free_user_ids=image.free_user_ids,
        token_owners=Map(owners),
        producer_owners=Map({number: user.id for user in users.values() for number in user.producers}),
        free_slots=image.free_slots,
        next_slot=image.next_slot,
        groups=counted_groups(streams, users),
    )
    return with_liftbridge(state, image.liftbridge), image.submissions


def _check_ranges(image: Image) -> None:
    """ValueError for what no server has written, before anything is made of the numbers."""
    topics = [topic for stream in image.streams for topic in stream.topics]
    runs = [run for topic in topics for run in topic.partitions]
    partitions = max((sum(run.count for run in topic.partitions) for topic in topics), default=0)
    slots = (*image.free_slots, *(run.slot for run in runs), *(run.slot + run.count - 1 for run in runs))
    fits = (
        all(0 <= stream.id < STREAMS_MAX for stream in image.streams)
        and all(0 <= topic.id < TOPICS_MAX for topic in topics)
        and all(run.count > 0 and 0 <= run.incarnation <= INDEX_MAX for run in runs)
        and partitions <= PARTITIONS_MAX
        and sum(run.count for run in runs) <= SLOTS_MAX
        and 0 <= image.next_slot <= SLOTS_MAX
        and all(0 <= slot < SLOTS_MAX for slot in slots)
    )
    if not fits:
        raise ValueError("ids, counts or slots that are out of their range")


def _runs(partitions: Sequence[Partition]) -> list[PartitionRun]:
    runs: list[PartitionRun] = []
    first, count = None, 0
    for partition in partitions:
        if (
            first is not None
            and partition.slot == first.slot + count
            and partition.incarnation == first.incarnation
            and partition.created_at_us == first.created_at_us
        ):
            count += 1
            continue
        if first is not None:
            runs.append(PartitionRun(count, first.created_at_us, first.incarnation, first.slot))
        first, count = partition, 1
    if first is not None:
        runs.append(PartitionRun(count, first.created_at_us, first.incarnation, first.slot))
    return runs


def _partitions(runs: list[PartitionRun]) -> tuple[Partition, ...]:
    partitions: list[Partition] = []
    for run in runs:
        first = len(partitions)
        partitions += [
            Partition(first + number, run.created_at_us, run.incarnation, run.slot + number)
            for number in range(run.count)
        ]
    return tuple(partitions)


def _stream_image(stream: Stream) -> StreamImage:
    topics = [_topic_image(stream.topics[number]) for number in sorted(stream.topics)]
    return StreamImage(stream.id, stream.name, stream.created_at_us, stream.incarnation, topics, stream.free_topic_ids)


def _topic_image(topic: Topic) -> TopicImage:
    groups = [topic.groups[number] for number in sorted(topic.groups)]
    return TopicImage(
        id=topic.id,
        name=topic.name,
        created_at_us=topic.created_at_us,
        incarnation=topic.incarnation,
        compression=topic.compression,
        message_expiry_us=topic.message_expiry_us,
        max_topic_size_bytes=topic.max_topic_size_bytes,
        replication_factor=topic.replication_factor,
        partitions=_runs(topic.partitions),
        groups=[GroupImage(each.id, each.name, each.created_at_us, each.incarnation, each.owner) for each in groups],
        free_group_ids=topic.free_group_ids,
        settings=dict(sorted(topic.settings.items())),
    )


def _user_image(user: User) -> UserImage:
    tokens = [user.tokens[name] for name in sorted(user.tokens)]
    return UserImage(
        id=user.id,
        name=user.name,
        created_at_us=user.created_at_us,
        active=user.active,
        password_hash=user.password_hash,
        permissions=user.permissions,
        incarnation=user.incarnation,
        tokens=[TokenImage(token.name, token.digest, token.expires_at_us) for token in tokens],
        revoked=sorted(user.revoked.items()),
        access_mark=user.access_mark,
        producers=[_producer_image(user.producers[number]) for number in sorted(user.producers)],
        kept_access=user.kept_access,
    )


def _producer_image(producer: Producer) -> tuple[int, int, int, int]:
    return producer.id, producer.epoch, producer.begun, producer.renewed_at_us


def _stream(image: StreamImage) -> Stream:
    topics = {each.id: _topic(each) for each in image.topics}
    return Stream(
        id=image.id,
        name=image.name,
        created_at_us=image.created_at_us,
        incarnation=image.incarnation,
        topics=Map(topics),
        topic_ids=Map({topic.name: topic.id for topic in topics.values()}),
        free_topic_ids=image.free_topic_ids,
    )


def _topic(image: TopicImage) -> Topic:
    groups = {
        each.id: ConsumerGroup(each.id, each.name, each.created_at_us, each.incarnation, each.owner)
        for each in image.groups
    }
    return Topic(
        id=image.id,
        name=image.name,
        created_at_us=image.created_at_us,
        incarnation=image.incarnation,
        compression=image.compression,
        message_expiry_us=image.message_expiry_us,
        max_topic_size_bytes=image.max_topic_size_bytes,
        replication_factor=image.replication_factor,
        partitions=_partitions(image.partitions),
        groups=Map(groups) if groups else EMPTY,
        group_ids=Map({group.name: group.id for group in groups.values()}) if groups else EMPTY,
        free_group_ids=image.free_group_ids,
        settings=_settings(image),
    )


def _settings(image: TopicImage) -> Map[str, str]:
    for key, value in image.settings.items():
        if value == "" or check_stored(key, value) != Status.OK:
            raise ValueError(f"topic {image.name} has {key!r} set to {value!r}")
    return Map(image.settings) if image.settings else EMPTY


def _user(image: UserImage) -> User:
    tokens = [Token(each.name, each.digest, each.expires_at_us) for each in image.tokens]
    return User(
        id=image.id,
        name=image.name,
        created_at_us=image.created_at_us,
        active=image.active,
        password_hash=image.password_hash,
        permissions=image.permissions,
        incarnation=image.incarnation,
        tokens=Map({token.name: token for token in tokens}) if tokens else EMPTY,
        revoked=Map(dict(image.revoked)) if image.revoked else EMPTY,
        access_mark=image.access_mark,
        producers=Map({each[0]: Producer(*each) for each in image.producers}) if image.producers else EMPTY,
        kept_access=image.kept_access,
    )
