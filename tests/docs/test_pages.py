"""What the pages for beginners say is what happens: every block of code runs, and prints what stands below it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import Reader, blocks_of

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final = [
    DOCS / "start.md",
    DOCS / "cli.md",
    *sorted(DOCS.glob("tutorial/*.md")),
    *sorted(DOCS.glob("coming-from/*.md")),
]
SLOW: Final = {"spark"}  # starts Java


def marked(page: Path) -> object:
    marks = [pytest.mark.slow] if page.stem in SLOW else []
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_every_block_of_the_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    compared = 0
    for shown, said in Reader(tmp_path).follow(page.read_text()):
        assert shown == said
        compared += 1
    assert compared


def test_there_are_pages_for_all_that_a_beginner_does() -> None:
    names = {page.stem for page in PAGES}
    assert names >= {"start", "produce", "consume", "groups", "retention", "tls", "spark"}
    assert names >= {"iggy", "kafka", "liftbridge"}


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("```console\n$ echo one\ntwo\n```\n", True),
        ("```console\n$ echo one\none\n```\n", False),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", True),
        ("```python\nprint(1)\n```\n\n```text\n1\n```\n", False),
        ("```sh\nexport A=5\n```\n```console\n$ echo $A\n5\n```\n", False),
    ],
)
def test_a_block_that_says_something_else_is_found(page: str, wrong: bool, tmp_path: Path) -> None:
    assert any(shown != said for shown, said in Reader(tmp_path).follow(page)) == wrong


def test_a_program_that_fails_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        list(Reader(tmp_path).follow("```python\n1 / 0\n```\n"))


def test_blocks_are_found() -> None:
    assert blocks_of("a\n```sh\nb\n```\nc\n```text\n```\n") == [("sh", "b\n"), ("text", "")]
