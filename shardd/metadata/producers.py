"""Producers whose batches are stored once (docs/adr/0073): part of the state machine of `apply.py`, as pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from shardd.metadata import commands
from shardd.metadata.records import Record
from shardd.metadata.state import ROOT_USER_ID, Producer, State, User
from shardd.protocol.errors import Status

PRODUCERS_MAX: Final = 65_536  # of the server; of a user as many as are left free (docs/adr/0130)
PRODUCERS_OF_USER_MAX: Final = 4_096  # half of what a partition takes (native/src/log/producers.h)
EPOCHS_MAX: Final = 1 << 32


def may_init(state: State, user: User, command: commands.InitProducer) -> Status:
    """20 for one that there is not (any more), or that is another user's; 30 for an epoch that has ended; 5 when there
    are too many."""
    if command.producer == 0:
        own, free = len(user.producers), PRODUCERS_MAX - len(state.producer_owners)
        full = own >= PRODUCERS_OF_USER_MAX or free <= 0 or (user.id != ROOT_USER_ID and own >= free)
        return Status.FEATURE_UNAVAILABLE if full else Status.OK
    known = user.producers.get(command.producer)
    if known is None:
        return Status.RESOURCE_NOT_FOUND
    if command.renew:
        return Status.OK if command.epoch == known.epoch else Status.STALE_CLIENT
    return Status.OK if known.epoch + 1 < EPOCHS_MAX else Status.FEATURE_UNAVAILABLE


def without_producers(state: State, user: User, ids: Iterable[int]) -> State:
    """Nobody knows these of the user any more."""
    owners, kept = state.producer_owners, user.producers
    for number in ids:
        owners, kept = owners.delete(number), kept.delete(number)
    if kept is user.producers:
        return state
    users = state.users.set(user.id, replace(state.users[user.id], producers=kept))
    return replace(state, users=users, producer_owners=owners)


def idle_producers(state: State, before_us: int) -> list[tuple[User, list[int]]]:
    """Every user that has some which were not renewed since, with these, by user id."""
    found = []
    for user_id in sorted(set(state.producer_owners.values())):
        user = state.users[user_id]
        idle = sorted(each.id for each in user.producers.values() if each.renewed_at_us < before_us)
        if idle:
            found.append((user, idle))
    return found


def _init_producer(state: State, record: Record, command: commands.InitProducer) -> State:
    user, now_us = state.users[command.user.id], command.now_us or record.timestamp_us
    if command.producer == 0:
        producer = Producer(record.index, 0, record.index, now_us)
    else:
        known = user.producers[command.producer]
        producer = replace(known, renewed_at_us=now_us)
        if not command.renew:
            producer = replace(producer, epoch=known.epoch + 1, begun=record.index)
    users = state.users.set(user.id, replace(user, producers=user.producers.set(producer.id, producer)))
    return replace(state, users=users, producer_owners=state.producer_owners.set(producer.id, user.id))


def _expire_producers(state: State, record: Record, command: commands.ExpireProducers) -> State:
    for user, idle in idle_producers(state, command.before_us):
        state = without_producers(state, user, idle)
    return state


PRODUCER_CHANGES: Final[dict[type[commands.Command], Callable[[State, Record, Any], State]]] = {
    commands.InitProducer: _init_producer,
    commands.ExpireProducers: _expire_producers,
}
