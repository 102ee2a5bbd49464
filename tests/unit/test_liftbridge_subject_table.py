"""What a subject finds is what the rules of NATS say one by one, and it costs the same whatever the patterns are."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shardd.doors.liftbridge import subject_table
from shardd.doors.liftbridge.subject_table import SubjectTable, is_pattern
from shardd.protocol.liftbridge.creation import WILDCARD_TOKENS_MAX

TOKENS = some.sampled_from(["a", "b", "1", "a*", "*b", "a>"])
LENGTHS = some.integers(1, 4) | some.integers(WILDCARD_TOKENS_MAX - 1, WILDCARD_TOKENS_MAX)
PATTERNS = LENGTHS.flatmap(
    lambda length: some.lists(TOKENS | some.just("*"), min_size=length, max_size=length)
).flatmap(lambda tokens: some.sampled_from([tokens, [*tokens[:-1], ">"]]).map(".".join))
SUBJECTS = some.lists(TOKENS | some.sampled_from(["*", ">", ""]), min_size=1, max_size=20).map(".".join)


def is_match(pattern: str, subject: str) -> bool:
    """By the words of the documentation of NATS; what has wildcards matches no subject with an empty token."""
    if not is_pattern(pattern):
        return pattern == subject
    wanted, said = pattern.split("."), subject.split(".")
    if not all(said):
        return False
    for at, token in enumerate(wanted):
        if token == ">":
            return len(said) > at
        if at >= len(said) or token not in ("*", said[at]):
            return False
    return len(wanted) == len(said)


def found(table: SubjectTable[int, str], subject: str) -> list[str]:
    return sorted(each for at in table.match(subject) for each in at.values())


def table_of(patterns: Iterable[str]) -> SubjectTable[int, str]:
    table: SubjectTable[int, str] = SubjectTable()
    for key, pattern in enumerate(patterns):
        table.add(pattern, key, pattern)
    return table


@settings(max_examples=300)
@given(
    some.lists(PATTERNS, max_size=12),
    some.lists(some.tuples(some.integers(0, 11), PATTERNS), max_size=12),
    some.lists(SUBJECTS | PATTERNS, max_size=6),
    some.sampled_from([2, 5, subject_table.FEW_MAX]),
)
def test_what_is_found_is_what_a_plain_matcher_finds_after_any_changes(
    first: list[str], changes: list[tuple[int, str]], subjects: list[str], few: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subject_table, "FEW_MAX", few)
        check_changes(first, changes, subjects)


def check_changes(first: list[str], changes: list[tuple[int, str]], subjects: list[str]) -> None:
    table, there = table_of(first), dict(enumerate(first))
    for key, pattern in changes:
        if key in there:
            table.remove(there.pop(key), key)
        table.add(pattern, key, pattern)
        there[key] = pattern
    # nearly every subject of the strategies misses; those that are made of a pattern meet it
    made = [pattern.replace("*", "a").replace(">", tail) for pattern in there.values() for tail in ("b", "a.b.1")]
    for subject in [*subjects, *made]:
        wanted = sorted(pattern for pattern in there.values() if is_match(pattern, subject))
        assert found(table, subject) == wanted
        assert table.has_match(subject) is bool(wanted)
    for pattern in there.values():
        assert {*table.at(pattern).values()} == {pattern}
    for key, pattern in there.items():
        table.remove(pattern, key)
    assert table.is_empty and not any(table._patterns._of_length) and not any(table._patterns._any)
    assert not any(table._patterns._with) and not table._patterns.numbers


def branching(wildcards: int) -> list[str]:
    """Every choice of a token or `*` at so many places: in a tree of tokens each place would double what a match
    follows."""
    return [
        ".".join((*tokens, *"x" * (WILDCARD_TOKENS_MAX - wildcards - 1), "*"))
        for tokens in itertools.product(("a", "*"), repeat=wildcards)
    ]


@pytest.mark.parametrize("subject", ["a" + ".a" * 11 + ".x.x.x.end", "a" + ".a" * 11 + ".x.x.y.end"])
def test_patterns_that_branch_at_each_token_cost_a_look_for_each_token(
    monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    table = table_of(branching(12))
    looks = 0

    class Counted(dict[str, Any]):
        def get(self, token: str, default: Any = 0) -> Any:
            nonlocal looks
            looks += 1
            return super().get(token, default)

    monkeypatch.setattr(table._patterns, "_with", [Counted(each) for each in table._patterns._with])
    hits = [each for each in branching(12) if is_match(each, subject)]
    assert len(hits) in (0, 4_096) and found(table, subject) == sorted(hits)
    assert 0 < looks <= WILDCARD_TOKENS_MAX


def test_tokens_that_few_patterns_have_cost_the_same_however_many_patterns_there_are() -> None:
    """Not a bit for each pattern, for each of their tokens."""

    def bytes_of(count: int) -> int:
        patterns = [".".join((*(f"{number}-{at}" for at in range(14)), "*")) for number in range(count)]
        tracemalloc.start()
        try:
            table = table_of(patterns)
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found(table, patterns[-1].replace("*", "end")) == patterns[-1:]
        return size

    assert bytes_of(4_000) < 6 * bytes_of(1_000)


def test_numbers_are_used_again() -> None:
    table = table_of(f"{number}.*" for number in range(100))
    for turn in range(50):
        for key in range(100):
            table.remove(f"{key + turn}.*", key)
            table.add(f"{key + turn + 1}.*", key, "")
    assert max(table._of_pattern) == 99 and len(table._of_pattern) == 100


def test_what_is_not_there_and_what_is_too_long() -> None:
    table = table_of(["a.*"])
    for subject in ("a.*", "b.*", "a"):
        with pytest.raises(KeyError):
            table.remove(subject, 7)
    with pytest.raises(ValueError, match="17 tokens"):
        table.add(".".join("*" * 17), 1, "")
    assert found(table, "a.b") == ["a.*"] and table.at("b.*") == {}


@given(some.sets(some.integers(0, 3_000), max_size=60))
def test_bits_are_those_that_are_on(numbers: set[int]) -> None:
    assert [*subject_table._bits(sum(1 << each for each in numbers))] == sorted(numbers)
