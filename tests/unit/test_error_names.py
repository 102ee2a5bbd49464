"""A class of errors has a name of its own, so that an `except` and a line of a traceback name one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

SHARDD = Path(__file__).parents[2] / "shardd"


def repeated_names(sources: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """The files of each name that several classes of errors have. A leading underscore does not make another name."""
    files: dict[str, list[str]] = defaultdict(list)
    for file, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                files[node.name.lstrip("_")].append(file)
    return {name: found for name, found in files.items() if len(found) > 1}


def test_error_classes_of_the_product_have_distinct_names() -> None:
    paths = sorted(SHARDD.rglob("*.py"))
    assert len(paths) > 400
    assert repeated_names((str(path.relative_to(SHARDD)), path.read_text()) for path in paths) == {}


def test_planted_error_class_with_a_taken_name_is_found() -> None:
    sources = [
        ("client/errors.py", "class ClosedError(Exception): ...\nclass LostError(ClosedError): ...\n"),
        ("doors/links.py", "def f():\n    class _ClosedError(ValueError): ...\n"),
    ]
    assert repeated_names(sources) == {"ClosedError": ["client/errors.py", "doors/links.py"]}
