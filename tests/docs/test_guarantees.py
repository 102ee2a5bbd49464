"""The pages of guarantees and of files name tests and targets that exist; each row of the guarantees names at least
one, or says that there is none."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("guarantees.md", "guarantees-in-detail.md", "files.md")
PROVEN: Final = ("guarantees.md", "guarantees-in-detail.md")
FUNCTION: Final = re.compile(r"`(test_\w+)`")
FILE: Final = re.compile(r"(?:[a-z]+/)?test_\w+\.(?:py|c)")
TARGET: Final = re.compile(r"`make ([\w-]+)`")
PLACE: Final = re.compile(r"[\w/]+\.(?:py|c)\b|`make [\w-]+`|`test_\w+`|golden: ")
SAYS_NONE: Final = "no test"
# Of readers under changes: the tests stand below that table.
WITHOUT_TESTS: Final = "| reader | another history |"


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


@cache
def functions() -> frozenset[str]:
    """Of tests in Python and C."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        found.update(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    for path in (ROOT / "native" / "tests").glob("*.c"):
        found.update(re.findall(r"\b(test_\w+)\(", path.read_text()))
    return frozenset(found)


def exists(name: str) -> bool:
    if name.endswith(".c"):
        return (ROOT / "native" / "tests" / name.rpartition("/")[2]).is_file()
    return any((ROOT / "tests").glob(name)) or ("/" not in name and any((ROOT / "tests").rglob(name)))


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = text_of(page)
    assert not [name for name in FUNCTION.findall(text) if name not in functions()]
    assert not [name for name in FILE.findall(text) if not exists(name)]


@pytest.mark.parametrize("page", PROVEN)
def test_every_target_that_a_page_names_exists_and_is_in_the_list_of_proofs(page: str) -> None:
    makefile, proofs = (ROOT / "Makefile").read_text(), text_of("guarantees.md").partition("\n## The proof\n")[2]
    for target in set(TARGET.findall(text_of(page))) - {"test"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        assert f"`make {target}`" in proofs, target


@pytest.mark.parametrize("page", PROVEN)
def test_every_row_names_what_proves_it(page: str) -> None:
    rows = unproved(text_of(page))
    assert not rows, "\n".join(rows)


def unproved(text: str) -> list[str]:
    found, table = [], ""
    for line in text.splitlines():
        if not line.startswith("|"):
            table = ""
        elif not table:
            table = line  # its head
        elif not line.startswith(("|---", "| ---")) and WITHOUT_TESTS not in table:
            proof = line.strip("| ").split(" | ")[-1]
            if not PLACE.search(proof) and SAYS_NONE not in line:
                found.append(line)
    return found


def test_a_row_without_a_proof_is_found() -> None:
    head = "| promise | shown by |\n|---|---|\n"
    assert unproved(head + "| nothing is lost | unit/test_levels.py |\n") == []
    assert unproved(head + "| nothing is lost | of course |\n") == ["| nothing is lost | of course |"]
