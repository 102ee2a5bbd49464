"""A restored directory begins a history of its own: behind the restored end its messages are others than those that
the server went on with which the backup was taken from, at the same offsets. Every partition gets a new incarnation,
which tells everybody who remembers one: checkpoints of Spark, archives, transactions of tables.

The epochs of idempotent producers jump, too: those that began after the backup, and what was sent in the others since,
are not known here, and none of them may be taken for one of the same number
(docs/adr/0088-a-restore-ends-all-epochs.md).

The index of the metadata jumps to a number that neither that server nor another restore comes to; its lower 32 bits
stay, as the files of stored offsets of groups are named after those of their group.
"""

from __future__ import annotations

import secrets
from typing import Final

from immutables import Map
from msgspec.structs import replace

from shardd.backup.format import BackupError
from shardd.metadata.births import digest_of, drawn_index, log_without_records
from shardd.metadata.producers import EPOCHS_MAX
from shardd.metadata.snapshot import encode_snapshot
from shardd.metadata.state import Partition, Producer, State, Stream, Topic, User

_EPOCHS_LEAST: Final = 1 << 16  # that began after the backup, at most
_EPOCHS_SPAN: Final = 1 << 20


def new_history(state: State) -> State:
    """The same metadata with another index and digest, and all partitions made by that record."""
    index = drawn_index(state.index)
    if index is None:
        raise BackupError("the directory was restored too often: there is no number left for another history")
    digest = digest_of(b"shardd-restore", state.digest, index)
    streams = {number: _stream(stream, index) for number, stream in state.streams.items()}
    users = {number: _user(user, index) for number, user in state.users.items()}
    return replace(state, index=index, digest=digest, streams=Map(streams), users=Map(users))


def _user(user: User, index: int) -> User:
    return replace(user, producers=Map({number: _producer(each, index) for number, each in user.producers.items()}))


def _producer(producer: Producer, index: int) -> Producer:
    """In an epoch that nobody has been told of."""
    jump = _EPOCHS_LEAST + secrets.randbelow(_EPOCHS_SPAN)
    return replace(producer, epoch=min(producer.epoch + jump, EPOCHS_MAX - 1), begun=index)


def _stream(stream: Stream, index: int) -> Stream:
    return replace(stream, topics=Map({number: _topic(topic, index) for number, topic in stream.topics.items()}))


def _topic(topic: Topic, index: int) -> Topic:
    partitions = tuple(Partition(each.id, each.created_at_us, index, each.slot) for each in topic.partitions)
    return replace(topic, partitions=partitions)


def encode_metadata(state: State) -> tuple[bytes, bytes]:
    """(snapshot, log without a record) that give this state."""
    return encode_snapshot(state, []), log_without_records(state)
