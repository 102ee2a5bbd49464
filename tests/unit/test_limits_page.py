"""docs/limits.md names constants, files and tests that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "limits.md"
SUFFIXES: Final = (".py", ".c", ".h")
COLUMNS: Final = 5  # bound, value, where, at the bound, test
NAME: Final = re.compile(r"`(_?[A-Z][A-Z0-9_]{3,})`")
FILE: Final = re.compile(r"[\w/]+\.(?:py|c|h)\b")
FOLDER: Final = re.compile(r"[\w/]+/(?=$|,| )")
TEST: Final = re.compile(r"`(test_\w+)`")


@cache
def texts(*folders: str) -> dict[str, str]:
    """By path from the root."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and "build" not in path.relative_to(ROOT).parts
    }


def named(what: str, sources: dict[str, str]) -> list[str]:
    """The texts of the file, by its path or the end of it."""
    return [text for path, text in sources.items() if f"/{path}".endswith(f"/{what}")]


def rows(page: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| ") and len(cells) == COLUMNS:
            yield number, cells


def untrue(page: str) -> list[str]:
    sources, tests = texts("shardd", "native"), texts("tests", "native/tests")
    functions = {name for text in tests.values() for name in re.findall(r"\b(test_\w+)\(", text)}
    wrong: list[str] = []
    for number, (bound, _, where, _, shown_by) in rows(page):
        files = {file: named(file, sources) for file in FILE.findall(where)}
        wrong += [f"{number}: there is no {file}" for file, found in files.items() if not found]
        found = [text for each in files.values() for text in each]
        found += [text for folder in FOLDER.findall(where) for path, text in sources.items() if path.startswith(folder)]
        if found:
            wrong += [
                f"{number}: {name} is not in {where}"
                for name in NAME.findall(bound)
                if not any(re.search(rf"\b{name}\b", text) for text in found)
            ]
        wrong += [f"{number}: there is no {file}" for file in FILE.findall(shown_by) if not named(file, tests)]
        wrong += [f"{number}: there is no {test}" for test in TEST.findall(shown_by) if test not in functions]
    return wrong


def test_the_page_names_what_is_there() -> None:
    page = PAGE.read_text()
    assert len(list(rows(page))) > 300
    assert not untrue(page)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("| `IDLE_S` | 60 s | shardd/doors/held_clients.py | closed | unit/test_held_clients.py |", ""),
        ("| `UNSENT_BYTES_MAX` | 1 MiB | nats/outbox.py | closed | - |", ""),
        ("| `IDLE_MS` | 60 s | shardd/doors/held_clients.py | closed | - |", "IDLE_MS is not in"),
        ("| `IDLE_S` | 60 s | shardd/doors/no_such_file.py | closed | - |", "there is no shardd/doors/no_such_file.py"),
        ("| a bound | 60 s | shardd/doors/asgi.py | closed | unit/test_no_such_file.py |", "test_no_such_file.py"),
        ("| a bound | 60 s | - | closed | unit/test_limits_page.py `test_no_such_test` |", "test_no_such_test"),
    ],
)
def test_a_row_that_is_not_true_is_found(row: str, wrong: str) -> None:
    found = untrue(row)
    assert len(found) == bool(wrong) and all(wrong in each for each in found)
