"""Producers in the metadata: whose they are, their epochs, when they are forgotten (docs/adr/0073)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from shardd.metadata import CreateUser, DeleteUser, Ref, State
from shardd.metadata import producers as metadata_producers
from shardd.metadata.commands import ExpireProducers, InitProducer
from shardd.metadata.snapshot import decode_snapshot, encode_snapshot
from shardd.protocol.errors import Status
from shardd.security import command_allowed
from tests.unit.test_metadata_users import after, ref, refused, user

NO_FILE = Path("state.snapshot")


@pytest.fixture
def state() -> State:
    state = after(State(), CreateUser("iggy", "hash", True, None))
    return after(state, CreateUser("bob", "hash", True, None))


def test_a_producer_belongs_to_one_user_and_its_epochs_only_rise(state: State) -> None:
    bob, root = ref(state, "bob"), Ref(0, 1)
    state = after(state, InitProducer(bob))
    (number,) = user(state, "bob").producers
    assert (number, user(state, "bob").producers[number].epoch) == (state.index, 0)
    assert refused(state, InitProducer(root, number)) is Status.RESOURCE_NOT_FOUND
    assert refused(state, InitProducer(bob, number + 1)) is Status.RESOURCE_NOT_FOUND
    assert not command_allowed(state, root, InitProducer(bob, number))
    state = after(state, InitProducer(bob, number))
    known = user(state, "bob").producers[number]
    assert (known.epoch, known.begun) == (1, state.index)
    assert refused(state, InitProducer(bob, number, 0, True)) is Status.STALE_CLIENT
    state = after(state, InitProducer(bob, number, 1, True))
    assert user(state, "bob").producers[number].begun == known.begun
    assert refused(state, InitProducer(bob, 1 << 64)) is Status.INVALID_COMMAND


def test_idle_ones_are_forgotten_and_their_ids_never_come_back(state: State) -> None:
    bob = ref(state, "bob")
    for _ in range(3):
        state = after(state, InitProducer(bob))
    first, second, third = sorted(user(state, "bob").producers)
    state = after(state, InitProducer(bob, first, 0, True))
    newest = user(state, "bob").producers[first].renewed_at_us
    assert [list(idle) for _, idle in metadata_producers.idle_producers(state, newest)] in (
        [],
        [[second, third]],
    )
    state = after(state, ExpireProducers(newest + 1))
    assert not state.producer_owners and not user(state, "bob").producers
    assert refused(state, InitProducer(bob, first)) is Status.RESOURCE_NOT_FOUND
    state = after(state, InitProducer(bob))
    assert min(user(state, "bob").producers) > third


def test_the_server_alone_forgets_producers(state: State) -> None:
    assert command_allowed(state, Ref(0, 1), ExpireProducers(1))
    assert not command_allowed(state, ref(state, "bob"), ExpireProducers(1))


def test_they_go_with_their_user_and_are_kept_by_a_snapshot(state: State) -> None:
    bob = ref(state, "bob")
    state = replace(state, digest=bytes([1]) * 32)
    without = encode_snapshot(state, [])
    assert without[8] < 4, "what earlier programs read stays as it was"
    state = after(after(state, InitProducer(bob)), InitProducer(bob, state.index + 1))
    state = replace(state, digest=bytes([2]) * 32)
    data = encode_snapshot(state, [])
    assert data[8] == 4
    assert decode_snapshot(NO_FILE, data).state == state
    state = after(state, DeleteUser(bob))
    assert not state.producer_owners
    assert encode_snapshot(state, [])[8] < 4


def test_one_user_cannot_take_all(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_producers, "PRODUCERS_OF_USER_MAX", 2)
    monkeypatch.setattr(metadata_producers, "PRODUCERS_MAX", 3)
    bob, root = ref(state, "bob"), Ref(0, 1)
    for _ in range(2):
        state = after(state, InitProducer(bob))
    assert refused(state, InitProducer(bob)) is Status.FEATURE_UNAVAILABLE
    state = after(state, InitProducer(root))
    assert refused(state, InitProducer(root)) is Status.FEATURE_UNAVAILABLE


def test_a_user_has_as_many_as_are_left_free(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_producers, "PRODUCERS_MAX", 8)
    state = after(state, CreateUser("alice", "hash", True, None))
    bob, alice, root = ref(state, "bob"), ref(state, "alice"), Ref(0, 1)
    for who, count in ((bob, 4), (alice, 2)):
        for _ in range(count):
            state = after(state, InitProducer(who))
        assert refused(state, InitProducer(who)) is Status.FEATURE_UNAVAILABLE
    for _ in range(2):
        state = after(state, InitProducer(root))  # counts for no user, but takes places
    assert refused(state, InitProducer(root)) is Status.FEATURE_UNAVAILABLE
    state = after(state, DeleteUser(bob))
    state = after(state, InitProducer(alice))
