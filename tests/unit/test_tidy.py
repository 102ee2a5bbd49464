"""Rules that keep the sources readable: sizes of files and functions, line length, no leftovers."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 100
FILE_LINES_USUAL = 400
FUNCTION_LINES_USUAL = 70
COLUMNS_MAX = 120
BLOB_BYTES_MAX = 1 << 20
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
C_FUNCTION = re.compile(r"^[A-Za-z_].*\(.*|^[A-Za-z_].*\)\s*\{$")


class Looks(NamedTuple):
    """Of a Python file: functions with their lines, and whether it has code without a docstring above it."""

    functions: list[tuple[str, int]]
    silent: bool


@cache
def looks_of(path: Path) -> Looks:
    """The tree itself is not kept: those of all files are 2.6 million objects, which each collection of garbage in this
    process would go through."""
    module = ast.parse(path.read_text())
    return Looks([*python_functions(module)], bool(module.body) and ast.get_docstring(module) is None)


def sources(*suffixes: str) -> list[Path]:
    folders = ("shardd", "native", "tests", "bench")
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path.is_file() and "build" not in path.relative_to(ROOT).parts
    )


def python_functions(module: ast.Module) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function, decorators and docstring not counted."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            documented = ast.get_docstring(node, clean=False) is not None
            docstring = (body[0].end_lineno or 0) - body[0].lineno + 1 if documented else 0
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, lines) of every function: from a line in the first column up to the brace that closes it there."""
    start = 0
    head = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("}") and head:
            yield head, number - start + 1
            head = ""
        elif not head and C_FUNCTION.match(line) and not line.rstrip().endswith(";"):
            head, start = line, number
        elif head and line[:1] not in ("", " ", "{", "}", "#", "/") and line.rstrip().endswith(";"):
            head = ""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_files(lines_max: int) -> list[str]:
    return [
        f"{relative(path)}: {lines} lines"
        for path in sources(".py", ".c", ".h")
        if (lines := len(path.read_text().splitlines())) > lines_max
    ]


def long_functions(lines_max: int) -> list[str]:
    return [
        f"{relative(path)}: {name.strip()}: {lines} lines"
        for path in sources(".py", ".c")
        for name, lines in (looks_of(path).functions if path.suffix == ".py" else c_functions(path.read_text()))
        if lines > lines_max
    ]


def test_files_are_short() -> None:
    long = long_files(FILE_LINES_MAX)
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    long = long_functions(FUNCTION_LINES_MAX)
    assert not long, "\n".join(long)


def test_long_files_and_functions_are_listed(record_property: Callable[[str, object], None]) -> None:
    """Never fails: a file is split where a concept ends, not where a number does. `pytest -rP` shows the list."""
    listed = [*long_files(FILE_LINES_USUAL), *long_functions(FUNCTION_LINES_USUAL)]
    record_property("longer than usual", listed)
    print(*listed, sep="\n")


def test_c_lines_fit() -> None:
    wide = [
        f"{relative(path)}:{number}"
        for path in sources(".c", ".h")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert not wide, "\n".join(wide)


def test_nothing_is_left_over() -> None:
    left = [
        f"{relative(path)}:{number}"
        for path in sources(".py", ".pyi", ".c", ".h")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFTOVER.search(line) and path != Path(__file__)
    ]
    assert not left, "\n".join(left)


def test_the_core_knows_no_python() -> None:
    offenders = [
        relative(path) for path in sources(".c", ".h") if path.parent.name == "src" and "Python.h" in path.read_text()
    ]
    assert not offenders, "\n".join(offenders)


def test_every_module_says_what_it_is() -> None:
    silent = [relative(path) for path in sources(".py") if looks_of(path).silent]
    assert not silent, "\n".join(silent)


def test_no_large_file_is_tracked() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a checkout")
    tracked = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    large = [relative(path) for path in tracked if path.is_file() and path.stat().st_size > BLOB_BYTES_MAX]
    assert not large, "\n".join(large)


def test_long_functions_would_be_found() -> None:
    body = "    x = 1\n" * FUNCTION_LINES_MAX
    assert list(python_functions(ast.parse(f"def long():\n{body}"))) == [("long", FUNCTION_LINES_MAX + 1)]
    c_body = "    x = 1;\n" * FUNCTION_LINES_MAX
    source = f"int a(int b);\nstatic int long_one(int x,\n                    int y) {{\n{c_body}}}\n"
    assert list(c_functions(source)) == [("static int long_one(int x,", FUNCTION_LINES_MAX + 3)]
