"""Consumer groups count for the user that made them; those of deleted accounts make room."""

from __future__ import annotations

import pytest

from shardd.metadata import commands, group_shares
from shardd.metadata.commands import Ref
from shardd.metadata.snapshot_image import decode_image, encode_image
from shardd.metadata.state import GroupShares, State
from shardd.metadata.validate import validate
from shardd.protocol.errors import Status
from tests.unit.test_metadata_apply import run

TOPIC = (Ref(0, 1), Ref(0, 2))
MAX = 32


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(group_shares, "GROUPS_MAX", MAX)
    return run(
        State(),
        commands.CreateStream("s"),
        commands.CreateTopic(TOPIC[0], "t", 1, 1, 0, 0, 1),
        commands.CreateUser("root", "$", True, None),
        commands.CreateUser("greedy", "$", True, None),
        commands.CreateUser("other", "$", True, None),
    )


def owner_of(state: State, name: str) -> int:
    return state.users[state.user_ids[name]].incarnation


def make(state: State, owner: int, name: str) -> commands.CreateConsumerGroup:
    return commands.CreateConsumerGroup(*TOPIC, name, None, owner)


def fill(state: State, owner: int, prefix: str) -> tuple[State, int]:
    for count in range(MAX + 1):
        command = make(state, owner, f"{prefix}{count}")
        if (refused := validate(state, command)) != Status.OK:
            assert refused == Status.FEATURE_UNAVAILABLE
            return state, count
        state = run(state, command)
    raise AssertionError("more than the bound are there")


def again(state: State) -> State:
    return decode_image(encode_image(state, ()), state.index, state.digest)[0]


def test_one_user_cannot_take_every_group(world: State) -> None:
    greedy = owner_of(world, "greedy")
    state, had = fill(world, greedy, "g")
    assert had == MAX // 2
    state, others = fill(state, owner_of(state, "other"), "o")
    assert others == MAX // 4
    state, of_root = fill(state, 0, "r")
    assert of_root == MAX - had - others


def test_groups_of_a_deleted_account_count_for_no_user(world: State) -> None:
    greedy = owner_of(world, "greedy")
    state, had = fill(world, greedy, "g")
    state = run(state, commands.DeleteUser(Ref(world.user_ids["greedy"], greedy)))
    assert state.groups == GroupShares(total=had, gone=had)
    assert len(state.streams[0].topics[0].groups) == had  # they stay
    other = owner_of(state, "other")
    state, others = fill(state, other, "o")
    assert others == MAX // 2  # the places of the others count as free
    assert group_shares.has_share(state, 0) and not group_shares.has_share(state, other)
    group = min(state.streams[0].topics[0].groups.values(), key=lambda each: each.incarnation)
    state = run(state, commands.DeleteConsumerGroup(*TOPIC, Ref(group.id, group.incarnation)))
    assert validate(state, make(state, 0, "next")) == Status.OK


def test_counts_outlive_a_snapshot_and_end_with_topic_and_stream(world: State) -> None:
    state, had = fill(world, owner_of(world, "greedy"), "g")
    state = run(state, make(state, 0, "r"), make(state, owner_of(state, "other"), "o"))
    assert again(state).groups == state.groups and state.groups.total == had + 2
    gone = run(state, commands.DeleteUser(Ref(state.user_ids["greedy"], owner_of(state, "greedy"))))
    assert again(gone).groups == gone.groups == GroupShares(had + 2, had, gone.groups.of)
    for ended in (commands.DeleteTopic(*TOPIC), commands.DeleteStream(TOPIC[0])):
        assert run(gone, ended).groups == run(state, ended).groups == GroupShares()
