"""A message goes to the partitions whose subjects match, as the rules of NATS say one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shardd.doors.liftbridge.router import Router, Target, partition_subject
from shardd.doors.liftbridge.subject_table import is_pattern
from shardd.protocol.liftbridge.requests import StreamInfo


def stream(
    name: str, subject: str, partitions: int = 1, group: str = "", paused: tuple[int, ...] = (), incarnation: int = 1
) -> StreamInfo:
    return StreamInfo(name, subject, group, 1, 1, incarnation, partitions, 1, {}, paused)


def router_of(*streams: StreamInfo) -> Router:
    router = Router(random.Random(1))
    router.replace(streams)
    return router


def is_match(pattern: str, subject: str) -> bool:
    """By the words of the documentation of NATS."""
    wanted, said = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(said) > at
        if at >= len(said) or token not in ("*", said[at]):
            return False
    return len(wanted) == len(said)


def naive(streams: list[StreamInfo], subject: str) -> set[Target]:
    return {
        Target(each.name, number)
        for each in streams
        for number in range(each.partitions)
        if is_match(partition_subject(each.subject, number), subject)
    }


TOKENS = some.sampled_from(["a", "b", "1", "2", "10", "01"])
SUBJECTS = some.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = some.lists(TOKENS | some.just("*"), min_size=1, max_size=4).flatmap(
    lambda tokens: some.sampled_from([tokens, [*tokens[:-1], ">"]]).map(".".join)
)
SETS = some.lists(
    some.tuples(
        some.sampled_from("pqrstuvw"), PATTERNS, some.integers(1, 12), some.sampled_from(["", "", "g", "h"])
    ).map(lambda row: stream(row[0], row[1], 1 if row[1].endswith(">") else row[2], row[3])),
    max_size=8,
    unique_by=lambda each: each.name,
)


@given(some.lists(SETS, min_size=1, max_size=4), some.lists(SUBJECTS, min_size=1, max_size=6))
def test_targets_are_those_of_a_naive_matcher_after_any_changes(
    sets: list[list[StreamInfo]], subjects: list[str]
) -> None:
    router = Router(random.Random(3))
    for streams in sets:
        router.replace(streams)
        groups = {each.name: each.group for each in streams}
        for subject in subjects:
            wanted = naive(streams, subject)
            for _ in range(2):  # the second time it is remembered
                found = router.matches(subject)
                assert len(set(found)) == len(found) and set(found) <= wanted
                assert {each for each in wanted if not groups[each.stream]} <= set(found)
                shared = {groups[each.stream] for each in wanted} - {""}
                assert Counter(groups[each.stream] for each in found if groups[each.stream]) == Counter(shared)


@given(SETS)
def test_a_router_of_nothing_is_empty_again(streams: list[StreamInfo]) -> None:
    router = router_of(*streams)
    router.replace([])
    assert router._listening.is_empty and not router._streams


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("foo", [("s", 0)]),
        ("foo.2", [("s", 2)]),
        ("foo.3", []),
        ("foo.02", []),
        ("foo.0", []),
        ("foo.-1", []),
        ("foo.+1", []),
        ("foo.²", []),
        ("foo.99999999999999999999", []),
        ("foo.", []),
        ("", []),
        (".", []),
        ("foo..1", []),
    ],
)
def test_partitions_have_one_name(subject: str, wanted: list[tuple[str, int]]) -> None:
    assert router_of(stream("s", "foo", 3)).matches(subject) == wanted


def test_subjects_of_partitions_and_of_streams_may_collide() -> None:
    router = router_of(stream("a", "foo", 2), stream("b", "foo.1"), stream("c", "*.1"), stream("d", "*", 2))
    assert {*router.matches("foo.1")} == {("a", 1), ("b", 0), ("c", 0), ("d", 1)}


def test_a_subject_with_a_wildcard_reaches_the_stream_that_has_it() -> None:
    router = router_of(stream("w", "w.*.x", 2), stream("r", ">"), stream("o", "w.a.x"))
    assert {*router.matches("w.*.x")} == {("w", 0), ("r", 0)}
    assert {*router.matches("w.*.x.1")} == {("w", 1), ("r", 0)}
    assert {*router.matches("w.>")} == {("r", 0)}


def test_members_of_a_queue_group_share_what_comes_at_random() -> None:
    router = router_of(stream("qa", "q", group="g"), stream("qb", "q", group="g"), stream("qc", "q"))
    taken = Counter(target.stream for _ in range(2_000) for target in router.matches("q"))
    assert taken["qc"] == 2_000 and taken["qa"] + taken["qb"] == 2_000 and min(taken.values()) > 850


def test_a_queue_group_is_one_whatever_the_subjects_of_its_streams_are() -> None:
    router = router_of(stream("g1", "grp.*", group="g"), stream("g2", "grp.1", group="g"), stream("g3", "grp", 2, "g"))
    taken = Counter(tuple(router.matches("grp.1")) for _ in range(900))
    assert taken.keys() == {(("g1", 0),), (("g2", 0),), (("g3", 1),)} and min(taken.values()) > 200


def test_a_paused_member_takes_nothing_while_another_one_is_awake() -> None:
    router = router_of(stream("qa", "q", group="g", paused=(0,)), stream("qb", "q", group="g"))
    assert {target for _ in range(50) for target in router.matches("q")} == {("qb", 0)}
    router.replace([stream("qa", "q", group="g", paused=(0,)), stream("qb", "q", group="g", paused=(0,))])
    assert {target.stream for _ in range(50) for target in router.matches("q")} == {"qa", "qb"}


def test_a_subscription_brings_messages_to_its_own_streams() -> None:
    router = router_of(
        stream("a", "x.*", 3),
        stream("b", "x.*", group="g"),
        stream("c", "x.>"),
        stream("d", "x.y", 2),
        stream("e", "x.*", group="g", paused=(0,)),
    )
    assert router.of_subscription("x.*", "", 0) == [("a", 0)]
    assert router.of_subscription("x.*", "", 2) == [("a", 2)]
    assert router.of_subscription("x.*", "", 3) == []
    assert router.of_subscription("x.*", "g", 0) == [("b", 0)]
    assert router.of_subscription("x.*", "g", 1) == []
    assert router.of_subscription("x.>", "", 0) == [("c", 0)]
    assert router.of_subscription("x.y", "", 1) == [("d", 1)]
    assert router.of_subscription("x", "", 0) == router.of_subscription("y.*.z", "", 0) == []


def test_a_change_is_made_in_short_steps_and_each_stream_is_old_or_new_meanwhile() -> None:
    router = router_of(*(stream(f"s{n}", f"old.{n}") for n in range(4_096)))
    changed = [stream(f"s{n}", f"new.{n}", 1_000) for n in range(4_096)]
    steps = 0
    for _ in router.replacing(changed):
        steps += 1
        assert len(router.matches("old.4095")) + len(router.matches("new.4095")) == 1
    assert steps >= 16 and router.matches("new.4095.999") == [("s4095", 999)]
    assert router.matches("old.17") == [] == router.matches("new.17.1000")


def test_many_subjects_leave_bounded_memory() -> None:
    router = router_of(stream("r", ">"))
    for number in range(10_000):
        assert router.matches(f"flood.{number}") == [("r", 0)]
    assert len(router._found) <= 4_096


def test_what_is_no_token_is_no_wildcard() -> None:
    assert not is_pattern("foo*.b>") and is_pattern("a.*") and is_pattern(">")
    assert router_of(stream("s", "foo*")).matches("foox") == []
    assert router_of(stream("s", "foo*")).matches("foo*") == [("s", 0)]
