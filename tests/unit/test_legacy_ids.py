"""Ids that earlier generations choose (docs/protocol/legacy.md#ids): given, or refused; what they leave out is free."""

from __future__ import annotations

import pytest
from immutables import Map

from shardd.metadata.ids import free_after, is_free, next_id
from shardd.protocol.errors import ShardError
from shardd.protocol.legacy.permissions import shifted
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions


def given(free: tuple[int, ...], used: int, chosen: int | None) -> tuple[int, tuple[int, ...]]:
    number = next_id(free, used, chosen)
    return number, free_after(free, used, number)


def test_without_a_choice_the_id_freed_last_comes_first() -> None:
    assert given((), 3, None) == (3, ())
    assert given((0, 2), 3, None) == (2, (0,))


def test_what_a_chosen_id_leaves_out_is_given_out_next() -> None:
    number, free = given((), 1, 4)
    assert (number, free) == (4, (3, 2, 1))
    used, order = 2, list[int]()
    for _ in range(4):
        number, free = given(free, used, None)
        used += 1
        order.append(number)
    assert order == [1, 2, 3, 5] and free == ()


def test_a_free_id_may_be_chosen() -> None:
    assert is_free((5, 2), 4, 5, 4096)
    assert given((5, 2), 4, 5) == (5, (2,))


def test_what_is_taken_or_too_large_is_refused() -> None:
    assert not is_free((5, 2), 4, 1, 4096)
    assert not is_free((), 0, 4096, 4096) and not is_free((), 0, (1 << 32) - 1, 4096)
    assert is_free((), 0, 4095, 4096) and is_free((), 9, None, 4)
    with pytest.raises(LookupError):
        free_after((), 3, 1)


def test_rights_name_what_the_server_calls_it() -> None:
    topics = Map({1: TopicPermissions(poll_messages=True)})
    sent = Permissions(streams=Map({3: StreamPermissions(read_stream=True, topics=topics)}))
    own = shifted(sent, -1)
    assert own is not None and dict(own.streams).keys() == {2} and dict(own.streams[2].topics).keys() == {0}
    assert shifted(own, 1) == sent and shifted(None, -1) is None
    with pytest.raises(ShardError, match="no such id"):
        shifted(Permissions(streams=Map({0: StreamPermissions()})), -1)
