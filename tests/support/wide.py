"""Cases that `make test-wide` tries beside those of `make test`.

Where each case of a test costs seconds and says the same about another value, `make test` has a choice of them. The
others are `wide`: `make test-wide` runs them, `make test` does not. Of pairs every value stays in the choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

WIDE: Final = (pytest.mark.slow, pytest.mark.wide)


def wide(*values: Any) -> ParameterSet:
    """A case of `make test-wide` alone."""
    return pytest.param(*values, marks=WIDE)


def wide_but(short: Iterable[Any], values: Iterable[Any]) -> list[ParameterSet]:
    """All values, of which `make test` tries those of `short`."""
    kept = [*short]
    assert kept
    return [pytest.param(each) if each in kept else wide(each) for each in values]


def crossed(first: Iterable[Any], second: Iterable[Any], times: int = 1) -> list[ParameterSet]:
    """All pairs. In `make test` each value occurs: the longer side has each of its values `times` times, each time with
    another value of the shorter side."""
    rows, columns = [*first], [*second]
    kept = _diagonals(len(rows), len(columns), times)
    pairs = product(enumerate(rows), enumerate(columns))
    return [pytest.param(a, b) if (m, n) in kept else wide(a, b) for (m, a), (n, b) in pairs]


def _diagonals(rows: int, columns: int, times: int) -> set[tuple[int, int]]:
    if rows < columns:
        return {(m, n) for n, m in _diagonals(columns, rows, times)}
    step = max(1, columns // times)
    return {(m, (m + turn * step) % columns) for m in range(rows) for turn in range(min(times, columns))}
