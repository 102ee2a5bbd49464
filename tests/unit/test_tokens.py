"""The count of product tokens leaves out what does not run: comments, docstrings, assertions (`make tokens`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.tokens import Sizes, c_tokens, package_of, python_tokens, rows

PYTHON = '''"""A docstring."""

def function(value):  # a comment
    """Another one, with umlauts äöü."""
    assert value > 0, "a reason"
    return value
'''
C = """/* A comment. */
_Static_assert(sizeof(int) == 4, "a reason (with a bracket");
int function(int value) { // another one
    ASSERT(value > (0));
    return value->next >>= 1;
}
"""


def words(text: str) -> int:
    return len(text.split())


def test_python_without_comments_docstrings_and_assertions() -> None:
    assert python_tokens(PYTHON) == words("def function ( value ) : return value")


def test_python_assertion_behind_wide_characters_is_left_out() -> None:
    assert python_tokens('name = "äöü"; assert name; print(name)\n') == words('name = "" ; ; print ( name )')


def test_c_without_comments_and_assertions() -> None:
    assert c_tokens(C) == words("int function ( int value ) { return value -> next >>= 1 ; }")


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("shardd/log/layout.py", "shardd/log"),
        ("shardd/doors/http/main.py", "shardd/doors/http"),
        ("shardd/doors/door.py", "shardd/doors"),
        ("native/src/log/partition/append.c", "native/src/log"),
        ("shardd/__init__.py", "shardd"),
    ],
)
def test_file_belongs_to_the_row_of_its_package(path: str, package: str) -> None:
    assert package_of(Path("/root") / path, Path("/root")) == package


def test_package_that_is_gone_counts_as_smaller() -> None:
    now = Sizes(Counter({"shardd/log": 1}), Counter({"shardd/log": 10}))
    before = Sizes(Counter(), Counter({"shardd/log": 5, "bench/native": 7}))
    table = [line.split() for line in rows(now, before)]
    assert ["bench/native", "0", "0", "7", "-7"] in table
    assert table[-1] == ["all", "10", "12", "-2"]
