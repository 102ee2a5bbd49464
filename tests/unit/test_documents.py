"""Documents can be read in an editor, and name functions and files that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
COLUMNS_MAX: Final = 100
OVERVIEWS: Final = ("docs/ARCHITECTURE.md", "README.md")
"""Documents whose tables fit a window, too."""
UNBROKEN: Final = {"CHANGELOG.md"}
"""Documents that keep the lines they were released with."""

WALKS: Final = ("docs/ARCHITECTURE.md", "docs/life-of-a-request.md", "docs/contributing.md", "native/README.md")
"""Documents that name functions and files of the sources."""
SOURCES: Final = (".py", ".pyi", ".c", ".h")
CODE: Final = re.compile(r"`([^`\n]+)`")
FILE: Final = re.compile(r"[\w/.-]+\.(?:py|pyi|c|h|md)")
CALL: Final = re.compile(r"(?:\w+\.)?(\w+)\(.*\)")
MEMBER: Final = re.compile(r"([A-Z]\w*)\.(\w+)")
CLASS: Final = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")
NOT_OURS: Final = {"preadv2", "Python.h"}


def documents() -> Iterator[Path]:
    yield from (path for path in ROOT.glob("*.md") if path.name not in UNBROKEN)
    for folder in ("docs", "shardd", "native", "tests", "bench"):
        yield from (ROOT / folder).rglob("*.md")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without tables and blocks of code: these cannot be broken."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.startswith("```")
        fenced ^= fence
        if not (fence or fenced or line.startswith(("|", "    "))):
            yield number, line


def wide_lines(text: str) -> list[int]:
    return [number for number, line in prose(text) if len(line) > COLUMNS_MAX]


@cache
def sources() -> dict[Path, str]:
    folders = ("shardd", "native", "tests", "bench", "config", "docs")
    return {
        path.relative_to(ROOT): path.read_text() if path.suffix in SOURCES else ""
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (*SOURCES, ".md") and "build" not in path.relative_to(ROOT).parts and path.is_file()
    }


@cache
def core() -> str:
    return "\n".join(text for path, text in sources().items() if path.suffix in (".c", ".h"))


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


@cache
def classes() -> dict[str, set[str]]:
    """Classes of the server with their functions and attributes."""
    found: dict[str, set[str]] = {}
    for path, text in sources().items():
        if path.parts[0] != "shardd" or path.suffix not in (".py", ".pyi"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                inside = list(ast.walk(node))
                members = {each.name for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                members |= {each.attr for each in inside if isinstance(each, ast.Attribute) and is_own(each.value)}
                found.setdefault(node.name, set()).update(members)
    return found


@cache
def functions() -> set[str]:
    python = "\n".join(text for path, text in sources().items() if path.suffix in (".py", ".pyi"))
    return set(re.findall(r"\bdef (\w+)\(", python)) | set(re.findall(r"\b(\w+)\(", core()))


def unknown_name(code: str) -> bool:
    """Whether `code`, between backticks, is a file, a function or a class that the sources do not have."""
    if code in NOT_OURS:
        return False
    if FILE.fullmatch(code):
        return not any(f"/{path}".endswith(f"/{code}") for path in sources())
    if called := CALL.fullmatch(code):
        name = called[1]
        return name not in functions() | NOT_OURS | classes().keys()
    if member := MEMBER.fullmatch(code):
        return member[2] not in classes().get(member[1], set())
    return bool(CLASS.fullmatch(code)) and code not in classes()


def unknown_names(text: str) -> list[str]:
    return [code for code in CODE.findall(text) if unknown_name(code)]


def test_documents_fit_a_window() -> None:
    wide = [f"{path.relative_to(ROOT)}:{number}" for path in documents() for number in wide_lines(path.read_text())]
    assert not wide, f"more than {COLUMNS_MAX} columns:\n" + "\n".join(wide)


@pytest.mark.parametrize("name", OVERVIEWS)
def test_tables_of_an_overview_fit_a_window(name: str) -> None:
    assert not [line for line in (ROOT / name).read_text().splitlines() if len(line) > COLUMNS_MAX]


def test_every_package_has_a_page_of_its_own() -> None:
    packages = {path.parent for path in (ROOT / "shardd").glob("*/__init__.py")}
    assert not [package.name for package in sorted(packages) if not (package / "README.md").exists()]


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_through_the_code_names_what_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not unknown_names(text), f"{name} names what is not there: {unknown_names(text)}"


# ---- what they have to find ----


def test_wide_lines_are_found_in_prose_alone() -> None:
    wide = "x" * (COLUMNS_MAX + 1)
    assert wide_lines(f"{wide}\n| {wide} |\n```\n{wide}\n```\n    {wide}\n- {wide}\n") == [1, 7]


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("commit_all()", False),
        ("commit_nothing()", True),
        ("core/commit.c", False),
        ("wire/commit.c", True),
        ("Worker.main", False),
        ("Worker.no_such_method", True),
        ("NoSuchWorker.main", True),
        ("JobScheduler", False),
        ("NoSuchScheduler", True),
        ("Bus.serve(method, senders, handler)", False),
        ("LINK_POLL", False),
        ("make run", False),
    ],
)
def test_names_that_are_not_there_are_found(code: str, unknown: bool) -> None:
    assert unknown_name(code) == unknown
