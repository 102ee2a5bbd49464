"""Every reference leads somewhere: pages, headings and links that code, tests and documents name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = (".py", ".pyi", ".c", ".h", ".toml", ".md")
FOLDERS: Final = ("shardd", "native", "tests", "bench", "docs", "config")

PAGE: Final = re.compile(r"\bdocs/[\w/.-]+\.md(?:#[\w-]+)?")
RECORD: Final = re.compile(r"\bdocs/adr/(\d{4})\b")
LINK: Final = re.compile(r"\[[^\]\n]*\]\(([^()\s]+)\)")
HEADING: Final = re.compile(r"^#+ +(.*)$", re.MULTILINE)
ANCHOR: Final = re.compile(r'<a id="([\w-]+)"></a>')
CODE_BLOCK: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE: Final = re.compile(
    r"\biggy-(?:protocol|server|legacy)\b|\b[a-z]+ spec \d|\bspec/\w|\b[PS] \d+(?:\.\d+)?\b|\bDESIGN(?:\.md| \d)"
)
"""Documents that are not in this repository."""


def files() -> Iterator[Path]:
    yield from (*sorted(ROOT.glob("*.md")), ROOT / "Makefile", ROOT / "pyproject.toml")
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            known = path.suffix in SOURCES or path.name == "Makefile"
            if known and path.is_file() and "build" not in path.relative_to(ROOT).parts:
                yield path


def slug(heading: str) -> str:
    """The anchor that a heading gets by its text: links as their words, lower case, without punctuation."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", ANCHOR.sub("", heading)).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    text = CODE_BLOCK.sub("", page.read_text())
    return {slug(heading) for heading in HEADING.findall(text)} | set(ANCHOR.findall(text))


def missing(target: str, base: Path) -> bool:
    """Whether `target`, a path with or without an anchor seen from `base`, leads nowhere."""
    path, _, anchor = target.partition("#")
    page = base / path
    if not page.exists():
        return True
    return anchor != "" and anchor not in anchors(page)


def broken_references(path: Path, text: str) -> list[str]:
    """What `text`, the content of the file `path`, names and is not there."""
    broken = [each for each in PAGE.findall(text) if missing(each, ROOT)]
    broken += [
        f"docs/adr/{each}" for each in RECORD.findall(text) if not list((ROOT / "docs/adr").glob(f"{each}-*.md"))
    ]
    if path.suffix == ".md":
        links = [each for each in LINK.findall(CODE_BLOCK.sub("", text)) if "://" not in each]
        broken += [
            each for each in links if missing(each if not each.startswith("#") else path.name + each, path.parent)
        ]
    return broken


def citations_elsewhere(text: str) -> list[str]:
    return ELSEWHERE.findall(text)


def test_every_reference_leads_to_a_page_and_a_heading() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {each}"
        for path in files()
        if path != Path(__file__)
        for each in broken_references(path, path.read_text())
    ]
    assert not broken, "\n".join(broken)


def test_nothing_cites_a_document_that_is_not_here() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {each}"
        for path in files()
        if path != Path(__file__)
        for each in citations_elsewhere(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_anchors_of_a_page_are_found_once() -> None:
    """A heading that gives its own anchor does not share it with another one."""
    twice = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        given = ANCHOR.findall(page.read_text())
        twice += [f"{page.relative_to(ROOT)}: {each}" for each in set(given) if given.count(each) > 1]
    assert not twice, "\n".join(twice)


# ---- what they have to find ----


@pytest.mark.parametrize(
    ("name", "text", "broken"),
    [
        ("x.py", "# docs/protocol/framing.md#request", []),
        ("x.py", "# docs/protocol/framing.md#no-such-heading", ["docs/protocol/framing.md#no-such-heading"]),
        ("x.c", "/* docs/protocol/no-such-page.md */", ["docs/protocol/no-such-page.md"]),
        ("x.h", "/* docs/adr/0010 */", []),
        ("x.h", "/* docs/adr/9999 */", ["docs/adr/9999"]),
        ("docs/x.md", "[formats](formats.md#log) and [here](limits.md)", []),
        ("docs/x.md", "[formats](formats.md#nothing)", ["formats.md#nothing"]),
        ("docs/x.md", "[away](../no-such-file.py)", ["../no-such-file.py"]),
        ("docs/limits.md", "[shares](#shares)", []),
        ("docs/limits.md", "[shares](#no-such-heading)", ["#no-such-heading"]),
        ("docs/x.md", "[out](https://example.org/no-such-page.md)", []),
    ],
)
def test_a_wrong_reference_is_found(name: str, text: str, broken: list[str]) -> None:
    assert broken_references(ROOT / name, text) == broken


@pytest.mark.parametrize(
    "text",
    [
        "(iggy-protocol 2.9)",
        "iggy-server 3.6",
        "(P 2.9)",
        "S 3.2:",
        "S 9, 60: all",
        "spark spec 4.1",
        "spec/x.md",
        "DESIGN 4",
    ],
)
def test_a_citation_of_another_document_is_found(text: str) -> None:
    assert citations_elsewhere(text)


def test_anchors_are_those_of_the_text_and_those_that_are_given() -> None:
    assert slug("One SEND_MESSAGES, in `C`") == "one-send_messages-in-c"
    assert slug('## 1. Request <a id="request"></a>'.lstrip("# ")) == "1-request"
    assert {"1-request", "request"} <= anchors(ROOT / "docs/protocol/framing.md")
