"""The choice of cases that `make test` tries where `make test-wide` tries all."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from tests.support.wide import crossed, wide_but


def kept(cases: list[ParameterSet]) -> list[tuple[object, ...]]:
    return [tuple(case.values) for case in cases if not case.marks]


@pytest.mark.parametrize(("rows", "columns"), [(9, 6), (6, 9), (4, 4), (3, 1), (1, 3), (8, 2)])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_choice_of_pairs_holds_every_value(rows: int, columns: int, times: int) -> None:
    cases = crossed(range(rows), range(columns), times)
    assert len(cases) == rows * columns
    chosen = kept(cases)
    assert {row for row, _ in chosen} == {*range(rows)} and {column for _, column in chosen} == {*range(columns)}
    assert len(chosen) == len({*chosen}) == max(rows, columns) * min(times, rows, columns)


def test_values_that_are_not_chosen_are_wide() -> None:
    cases = wide_but(["b"], "abc")
    assert kept(cases) == [("b",)]
    assert all({mark.name for mark in case.marks} == {"slow", "wide"} for case in cases if case.marks)
