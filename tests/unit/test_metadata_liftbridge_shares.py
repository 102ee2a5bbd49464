"""Members of Liftbridge's groups have owners, and users have shares of all groups and of one
(docs/adr/0138-shares-of-liftbridge-groups.md)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from shardd.metadata import commands, validate
from shardd.metadata.commands import Ref
from shardd.metadata.liftbridge_state import (
    GROUP_SIZE_MAX,
    GROUPS_SIZE_MAX,
    MEMBERS_MAX,
    NO_OWNER,
    USER_SIZE_MAX,
    Charge,
)
from shardd.metadata.snapshot import decode_snapshot, encode_snapshot
from shardd.metadata.snapshot_image import Image, decode_image, encode_image
from shardd.metadata.state import State
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.requests import STREAMS_OF_MEMBER_MAX
from tests.unit.test_metadata_apply import run
from tests.unit.test_metadata_liftbridge import new_stream, place

WIDE = 15  # streams of a member
ROOT, FULL = "root", Status.FEATURE_UNAVAILABLE


@pytest.fixture
def state() -> State:
    """The home stream with WIDE streams of Liftbridge; root, greedy and others."""
    state = run(State(), *(commands.CreateUser(name, "hash", True, None) for name in (ROOT, "greedy")))
    state = run(state, *(commands.CreateUser(f"other{number}", "hash", True, None) for number in range(8)))
    home = commands.CreateStream("liftbridge-default")
    state = run(state, home)
    ref = Ref(0, state.streams[0].incarnation)
    state = run(state, commands.PrepareLiftbridge(ref, "server"))
    return run(state, *(replace(new_stream(f"s{number}", 1), stream=ref) for number in range(WIDE)))


def user(state: State, name: str) -> Ref:
    found = state.users[state.user_ids[name]]
    return Ref(found.id, found.incarnation)


def joining(state: State, name: str, group: str, member: str, streams: int = 1) -> commands.JoinLiftbridgeGroup:
    places = tuple(place(state, f"s{number}") for number in range(streams))
    return commands.JoinLiftbridgeGroup(user(state, name), group, member, places)


def fill(state: State, name: str, group: str, streams: int = 1) -> tuple[State, int]:
    """As many members as are let in."""
    count = 0
    while True:
        command = joining(state, name, group, f"{name}.{count}", streams)
        if validate(state, command) != Status.OK:
            assert validate(state, command) == FULL
            return state, count
        state, count = run(state, command), count + 1


def test_one_user_cannot_take_every_member_of_a_group(state: State) -> None:
    state, members = fill(state, "greedy", "g")
    assert members == MEMBERS_MAX // 2
    state, others = fill(state, "other0", "g")
    assert others == MEMBERS_MAX // 4
    assert validate(state, joining(state, "other1", "g", "first")) == Status.OK
    assert validate(state, joining(state, "greedy", "another", "first")) == Status.OK


def test_one_user_cannot_take_all_that_a_group_may_count(state: State) -> None:
    state, members = fill(state, "greedy", "g", WIDE)
    assert members * (WIDE + 1) == GROUP_SIZE_MAX // 2 == USER_SIZE_MAX
    assert validate(state, joining(state, "other0", "g", "first", WIDE)) == Status.OK


def test_users_together_leave_room_in_all_groups(state: State) -> None:
    """As many as took all of it while each had a fixed part."""
    home = Ref(0, state.streams[0].incarnation)
    more = (replace(new_stream(f"s{number}", 1), stream=home) for number in range(WIDE, STREAMS_OF_MEMBER_MAX - 1))
    state = run(state, *more)
    users = GROUPS_SIZE_MAX // USER_SIZE_MAX
    for number in range(users):
        state, _ = fill(state, f"other{number}", f"g{number}", STREAMS_OF_MEMBER_MAX - 1)
    assert state.liftbridge.charged_all == (users - 1) * USER_SIZE_MAX + USER_SIZE_MAX // 2
    state, _ = fill(state, "greedy", "new", STREAMS_OF_MEMBER_MAX - 1)
    assert state.liftbridge.charged_all == (users - 1) * USER_SIZE_MAX + USER_SIZE_MAX * 3 // 4


def test_members_of_a_deleted_user_count_for_no_user_and_leave(state: State) -> None:
    state, members = fill(state, "greedy", "g")
    size = state.liftbridge.charged_all
    state = run(state, commands.DeleteUser(user(state, "greedy")))
    assert state.liftbridge.charged_gone == size == 2 * members
    again(state)
    state = run(state, commands.CreateUser("greedy", "hash", True, None))
    assert validate(state, joining(state, "greedy", "g", "more")) == Status.OK
    state, others = fill(state, "other0", "g")
    assert others == MEMBERS_MAX - members  # no place is left, and their places count as free
    for number in range(members):
        state = run(state, commands.LeaveLiftbridgeGroup("g", f"greedy.{number}", True, state.index))
    assert state.liftbridge.charged_gone == 0 and state.liftbridge.charged_all == 2 * others
    again(state)


def test_members_of_root_take_places_and_have_no_share(state: State) -> None:
    state, members = fill(state, ROOT, "g")
    assert members == MEMBERS_MAX
    assert not state.liftbridge.charged and state.liftbridge.charged_all == 2 * members
    again(state)


def test_members_in_a_snapshot_of_an_earlier_version_have_no_owner(state: State) -> None:
    state = run(state, joining(state, "greedy", "g", "one", 2))
    greedy = user(state, "greedy")
    image = msgspec.msgpack.decode(encode_image(state, []), type=Image)
    assert image.liftbridge is not None
    [group] = image.liftbridge.groups
    assert group.members[0][2] == Charge(greedy.id, 3, greedy.incarnation)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(image))
    [[_, _, charge]] = plain[_place_of("liftbridge")][3][0][2]
    assert charge == [greedy.id, 3, greedy.incarnation]
    del charge[2:]
    old, _ = decode_image(msgspec.msgpack.encode(plain), state.index, state.digest)
    assert old.liftbridge.groups["g"].charges["one"].owner == NO_OWNER
    assert not old.liftbridge.charged and old.liftbridge.charged_all == 3


def _place_of(field: str) -> int:
    return [each.name for each in msgspec.structs.fields(Image)].index(field)


def again(state: State) -> None:
    """A snapshot says the same."""
    state = replace(state, digest=bytes([7]) * 32)
    assert decode_snapshot(Path("state.snapshot"), encode_snapshot(state, [])).state == state
