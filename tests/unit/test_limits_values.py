"""docs/limits.md says the numbers that the sources have. A row says the number of each constant that it begins with, or
has in brackets behind a number; and each number in figures of its value is that of a constant, of a setting, of a
formula, or stands in the files of the row, or has a reason in limits_reasons.py."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

import pytest

from tests.support.source_constants import ROOT, Sources, UnknownError
from tests.unit.limits_numbers import (
    Row,
    constants_of,
    known_of,
    missing_of,
    numbers_of,
    rows_of,
    unchecked_of,
    wrong_of_prose,
)
from tests.unit.limits_reasons import FORMULAS, UNCHECKED

SOURCES: Final = Sources()


@cache
def rows() -> tuple[Row, ...]:
    return tuple(rows_of((ROOT / "docs" / "limits.md").read_text()))


def test_rows_say_the_numbers_of_their_constants() -> None:
    assert len(rows()) > 350
    assert not [wrong for row in rows() for wrong in missing_of(row, SOURCES)]


def test_numbers_of_rows_are_those_of_constants_settings_or_files() -> None:
    assert not [wrong for row in rows() for wrong in unchecked_of(row, SOURCES)]


def test_other_pages_say_the_numbers_of_constants() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"]  # which tell what was
    assert not [f"{page.name}: {wrong}" for page in pages for wrong in wrong_of_prose(page.read_text(), SOURCES)]
    assert wrong_of_prose("the writer 5,505,152 bytes (`PRODUCERS_FILE_BYTES_MAX`)", SOURCES)
    assert not wrong_of_prose("the writer 21,495,936 bytes (`PRODUCERS_FILE_BYTES_MAX`)", SOURCES)


def test_changed_constants_are_found_one_by_one() -> None:
    tried, blind = 0, list[str]()
    for row in rows():
        for name, homes in constants_of(row).items():
            for home in homes:
                try:
                    number = SOURCES.number(home, name)
                except UnknownError:  # several numbers
                    continue
                tried += 1
                if not missing_of(row, Sources({(home, name): 3 * number + 11})):
                    blind.append(f"{row.line}: {name} of {home}")
    assert tried > 550
    assert not blind, "the page would stay as it is when these change"


def test_changed_formulas_are_found() -> None:
    changed = Sources({("shardd/dispatch/door/places.py", "ASIDE_BYTES_MIN"): 4 << 10})
    [row] = [row for row in rows() if row.bound.startswith("`BEGUN_BYTES_MAX`")]
    assert unchecked_of(row, changed) and not unchecked_of(row, SOURCES)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("| `IDLE_S` | 60 s | shardd/doors/held_clients.py | closed | - |", ""),
        ("| `IDLE_S` | a minute | shardd/doors/held_clients.py | closed | - |", ""),
        ("| `IDLE_S` | 61 s | shardd/doors/held_clients.py | closed | - |", "IDLE_S is"),
        ("| `IDLE_S` | 60 ms | shardd/doors/held_clients.py | closed | - |", "IDLE_S is"),
        ("| a client | 60 s (`IDLE_S`) | shardd/doors/held_clients.py | closed | - |", ""),
        ("| a client | 6 s (`IDLE_S`) | shardd/doors/held_clients.py | closed | - |", "IDLE_S is"),
        ("| a client | 60 s, see `NO_SUCH_S` | shardd/doors/held_clients.py | closed | - |", ""),
        ("| a client | 60 s (`NO_SUCH_S`) | shardd/doors/held_clients.py | closed | - |", "there is no number"),
        ("| a client | 61 s | shardd/doors/held_clients.py | closed | - |", "61 s stands in no"),
        ("| `LEASES_OF_SHARD_MAX` | 4,096 | shardd/service/lease_table.py | closed | - |", ""),
        ("| `LEASES_OF_SHARD_MAX` | 4,097 | shardd/service/lease_table.py | closed | - |", "LEASES_OF_SHARD_MAX is"),
        ("| `IDLE_S` | 60 s; setting `server.connections_max`, 10,000 | shardd/doors/held_clients.py | - | - |", ""),
        (
            "| `IDLE_S` | 60 s; setting `server.connections_max`, 10,001 | shardd/doors/held_clients.py | - | - |",
            "10,001",
        ),
        ("| `ANSWER_BYTES_MAX` | 4 GiB - 1 MiB | native/src/log/partition/poll.c | - | - |", ""),
        ("| `ANSWER_BYTES_MAX` | 4 GiB - 2 MiB | native/src/log/partition/poll.c | - | - |", "ANSWER_BYTES_MAX is"),
        ("| `IDLE_S` | 60 s | shardd/doors/held_clients.py | told again after 61 s | - |", "61 s stands in no"),
        ("| `IDLE_S` | 60 s | shardd/doors/held_clients.py | status 61 | - |", ""),
        ("| polls | 1 | 2 | 32 (`EVENTS_ANONYMOUS_MAX`) | - | - | - |", "2 stands in no"),
        ("| polls | 1 | - | 33 (`EVENTS_ANONYMOUS_MAX`) | - | - | - |", "EVENTS_ANONYMOUS_MAX is"),
    ],
)
def test_wrong_number_of_a_row_is_found(row: str, wrong: str) -> None:
    [made] = rows_of(row)
    found = missing_of(made, SOURCES) + unchecked_of(made, SOURCES)
    assert bool(found) == bool(wrong) and (not wrong or any(wrong in each for each in found))


def test_reasons_and_formulas_are_of_numbers_that_the_page_has() -> None:
    kinds: list[tuple[str, Iterable[str]]] = [*UNCHECKED.items(), *FORMULAS.items()]
    for bound, texts in kinds:
        of_bound = [row for row in rows() if row.bound == bound]
        assert of_bound, f"the page has no row {bound}"
        said = {each.text for row in of_bound for text in (row.value, row.at_the_bound) for each in numbers_of(text)}
        assert set(texts) <= said, f"{bound} does not say {set(texts) - said}"


def test_reasons_are_of_numbers_that_nothing_says() -> None:
    for row in rows():
        known = known_of(row, SOURCES)
        for number in numbers_of(row.value):
            if number.text in UNCHECKED.get(row.bound, {}) and not number.is_word:
                assert not number.quantities & known, f"{row.line}: {number.text} needs no reason"
