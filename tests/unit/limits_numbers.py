"""Numbers of a row of docs/limits.md, and what the sources say about them.

A number is checked where the row names a constant that has it, or a setting that has it as default or bound, where it
stands in the row's files, or where it follows from constants. Other ones stand in limits_reasons.py."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from shardd.config.keys import KEYS
from tests.support.source_constants import ROOT, Number, Sources, UnknownError
from tests.unit.limits_reasons import FORMULAS, UNCHECKED

UNITS: Final = {
    "bytes": ("bytes", 1),
    "KB": ("bytes", 1000),
    "MB": ("bytes", 1_000_000),
    "KiB": ("bytes", 1 << 10),
    "MiB": ("bytes", 1 << 20),
    "GiB": ("bytes", 1 << 30),
    "us": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "millisecond": ("s", 1e-3),
    "s": ("s", 1),
    "second": ("s", 1),
    "m": ("s", 60),
    "min": ("s", 60),
    "minute": ("s", 60),
    "minutes": ("s", 60),
    "h": ("s", 3600),
    "hour": ("s", 3600),
    "day": ("s", 86_400),
    "days": ("s", 86_400),
}
WORDS: Final = {
    "one": 1,
    "two": 2,
    "twice": 2,
    "half": 2,
    "three": 3,
    "four": 4,
    "quarter": 4,
    "quarters": 4,
    "eight": 8,
    "eighth": 8,
    "nine": 9,
    "tenths": 10,
    "sixteenth": 16,
}
PARTS: Final = ("half", "quarter", "eighth", "sixteenth", "tenths")
_NUMBER: Final = re.compile(
    rf"(?<![\w.,/^-])(?:(?P<base>\d+)\^(?P<power>\d+)|(?P<one>\d+)/(?P<part>\d[\d,]*)"
    rf"|(?P<digits>\d[\d,]*(?:\.\d+)?(?!\.?\d))|(?P<word>an?|each|{'|'.join(WORDS)}))\b"
    rf"(?: (?P<unit>{'|'.join(sorted(UNITS, key=len, reverse=True))})\b)?"
)
_NOT_NUMBERS: Final = re.compile(
    r"\]\([^)]*\)|\[(?:ADR |adr/)[^]]*\]|`[^`]*`|\b0\.\d(?:\.\d)?\b(?! [a-z]*s\b)|\bstatus \d+|\bnice \+ \d+"
)  # where links lead, code, versions, statuses, niceness
_FILE: Final = re.compile(r"[\w/]+\.(?:py|c|h)\b")
_FOLDER: Final = re.compile(r"[\w/]+/(?=$|,| )")
_NAME: Final = re.compile(r"`(_?[A-Z][A-Z0-9_]{3,})`")
_EXPLAINED: Final = re.compile(r"\(`(_?[A-Z][A-Z0-9_]{3,})`(?:, (?:\d|`)[^()]*)?\)")
_BEHIND_NUMBER: Final = re.compile(r"(\d[\d,.]*[^()|;`\d]{0,30})\(`(_?[A-Z][A-Z0-9_]{3,})`")
_SETTING: Final = re.compile(r"`([a-z_]*(?:\.[a-z_]+)*)`")
_C_LITERAL: Final = re.compile(r"\b(\d+)u?(?:ll|LL|l|L)?\s*(<<|\*)\s*(\d+)u?\b|\b(0x[0-9a-fA-F]+|\d+)[uUlL]*\b")


class Quantity(NamedTuple):
    """`unit`: bytes, s, or "" for a plain number."""

    value: Number
    unit: str


class Row(NamedTuple):
    """`where`: files of the sources."""

    line: int
    bound: str
    value: str
    where: tuple[str, ...]
    at_the_bound: str
    shown_by: str


class Said(NamedTuple):
    """A number as the page says it, and what it may mean: 1/16 is said of a share of 16, too."""

    text: str
    quantities: frozenset[Quantity]
    is_word: bool


def quantity(value: Number, unit: str) -> Quantity:
    return Quantity(round(value, 9), unit)


def numbers_of(text: str) -> Iterator[Said]:
    text = _NOT_NUMBERS.sub("_", text)
    for match in _NUMBER.finditer(text):
        if text[: match.start()].endswith(" - "):  # 1 MiB of 4 GiB - 1 MiB
            continue
        unit, factor = UNITS.get(match["unit"] or "", ("", 1))
        value: Number
        if match["base"]:
            value = int(match["base"]) ** int(match["power"])
        elif match["part"]:
            value = int(match["part"].replace(",", "").strip())
        elif match["digits"]:
            digits = match["digits"].replace(",", "")
            value = float(digits) if "." in digits else int(digits)
        elif match["word"] in WORDS:
            value = WORDS[match["word"]]
        elif unit:
            value = 1
        else:
            continue
        found = {quantity(value * factor, unit)}
        minus = re.match(r" - (\d+)(?: (\w+))?", text[match.end() :])
        if minus and not match["word"]:
            found = {quantity(value * factor - int(minus[1]) * UNITS.get(minus[2] or "", ("", 1))[1], unit)}
        yield Said(match[0], frozenset(found), bool(match["word"]))


def meanings(name: str, value: Number) -> set[Quantity]:
    """How the page may say it: the unit stands last in a name."""
    if name.endswith(("_S", "_MS", "_US")) and not name.endswith("_PER_S"):
        factor = {"S": 1, "MS": 1e-3, "US": 1e-6}[name.rpartition("_")[2]]
        return {quantity(value * factor, "s")}
    if "_MS_" in name:
        return {quantity(value * 1e-3, "s")}
    if "_US_" in name:
        return {quantity(value * 1e-6, "s")}
    return {quantity(value, ""), quantity(value, "bytes")}


@cache
def source_files() -> tuple[str, ...]:
    return tuple(
        sorted(
            str(path.relative_to(ROOT))
            for folder in ("shardd", "native")
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".c", ".h") and "build" not in path.relative_to(ROOT).parts
        )
    )


@cache
def files_named(where: str) -> tuple[str, ...]:
    """By their paths or the ends of them."""
    named = [each for file in _FILE.findall(where) for each in source_files() if f"/{each}".endswith(f"/{file}")]
    named += [each for folder in _FOLDER.findall(where) for each in source_files() if each.startswith(folder)]
    return tuple(dict.fromkeys(named))


def rows_of(page: str) -> Iterator[Row]:
    """Of tables with the columns bound, value, where, at the bound, test; and of *Shares*, whose values stand in all
    cells but the first and the last."""
    for line, text in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in text.strip("| ").split(" | ")]
        if not text.startswith("| ") or cells[0] in ("bound", "resource") or set(cells[0]) == {"-"}:
            continue
        if len(cells) == 5:
            yield Row(line, cells[0], cells[1], files_named(cells[2]), cells[3], cells[4])
        elif len(cells) == 7:
            yield Row(line, cells[0], "; ".join(cells[1:6]), (), "", cells[6])


def constants_of(row: Row) -> dict[str, list[str]]:
    """Those whose numbers the row has to say: it begins with them, or has them in brackets behind a number. Where each
    stands: in the row's files, or else anywhere."""
    names = _NAME.findall(row.bound) + _EXPLAINED.findall(row.value) + _EXPLAINED.findall(row.at_the_bound)
    sources = Sources()
    homes: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        near = [file for file in row.where if sources.has(file, name)]
        homes[name] = near or [file for file in source_files() if sources.has(file, name)]
    return homes


def quantities_of(sources: Sources, name: str, homes: list[str]) -> list[set[Quantity]]:
    """What each of its numbers may be said as. UnknownError."""
    return [meanings(name, value) for home in homes for value in sources.numbers(home, name)]


@cache
def of_settings() -> dict[str, frozenset[Quantity]]:
    """Defaults and bounds of settings, by the whole path and by its ends."""
    found: dict[str, set[Quantity]] = {}
    for key in KEYS:
        try:
            numbers = [key.parse(key.default)]
        except (TypeError, ValueError):
            continue
        within = inspect.getclosurevars(key.parse).nonlocals
        numbers += [within[name] for name in ("low", "high") if name in within]
        is_time = key.field.endswith(("_ms", "_us", "_s"))
        factor = {"us": 1e-6, "ms": 1e-3}.get(key.field.rpartition("_")[2], 1)
        for number in numbers:
            if isinstance(number, int | float) and not isinstance(number, bool):
                meant = {quantity(number * factor, unit) for unit in (("s",) if is_time else ("", "bytes"))}
                parts = key.path.split(".")
                for at in range(len(parts)):
                    found.setdefault(".".join(parts[at:]), set()).update(meant)
    return {name: frozenset(each) for name, each in found.items()}


@cache
def literals(file: str) -> frozenset[Number]:
    """Numbers that stand in a file as such, a product or a shift of two as one."""
    text = (ROOT / file).read_text()
    if file.endswith(".py"):
        found = set[Number]()
        sources = Sources()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant | ast.BinOp):
                try:
                    value = sources.python(node, file)
                except (UnknownError, KeyError):
                    continue
                if not isinstance(value, bool):
                    found.add(round(value, 9))
        return frozenset(found)
    found = set[Number]()
    for left, sign, right, alone in _C_LITERAL.findall(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
        if alone:
            found.add(int(alone, 0))
        else:
            found |= {
                int(left),
                int(left) << int(right) if sign == "<<" and int(right) < 64 else int(left) * int(right),
            }
    return frozenset(found)


def is_literal(said: Said, row: Row) -> bool:
    there = frozenset[Number]().union(*map(literals, row.where))
    for value, unit in said.quantities:
        if {value} & there or (unit == "s" and {round(value * 1e3), round(value * 1e6)} & there):
            return True
    return False


def missing_of(row: Row, sources: Sources) -> list[str]:
    """Constants of the row whose numbers it does not say."""
    said = {each for text in (row.bound, row.value, row.at_the_bound) for each in numbers_of(text)}
    there = {meant for each in said for meant in each.quantities}
    wrong: list[str] = []
    for name, homes in constants_of(row).items():
        try:
            quantities = quantities_of(sources, name, homes)
        except UnknownError:
            quantities = []
        if not quantities:
            wrong.append(f"{row.line}: there is no number {name}")
        others = all_quantities(row, sources, but=name)
        for each in quantities:
            if not each & there and not parts_of(each, said) & others:
                wrong.append(f"{row.line}: {name} is {sorted(each)}")
    return wrong


def parts_of(each: set[Quantity], said: set[Said]) -> set[Quantity]:
    """What it is half, or a quarter of, where the row says so in words."""
    parts = {meant.value for number in said if number.text in PARTS for meant in number.quantities}
    return {Quantity(one.value * part, one.unit) for one in each for part in parts}


def wrong_of_prose(text: str, sources: Sources) -> list[str]:
    """Of a page without rows: constants in brackets behind a number that they do not have."""
    wrong: list[str] = []
    for match in _BEHIND_NUMBER.finditer(text):
        number, name = match.groups()
        said = {meant for each in numbers_of(number) for meant in each.quantities}
        homes = [file for file in source_files() if sources.has(file, name)]
        try:
            quantities = quantities_of(sources, name, homes)
        except UnknownError:  # a text
            continue
        if quantities and not any(each & said for each in quantities):
            wrong.append(f"{number.strip()} is not {name}")
    return wrong


def all_quantities(row: Row, sources: Sources, but: str = "") -> set[Quantity]:
    known = set[Quantity]()
    for name, homes in constants_of(row).items():
        with contextlib.suppress(UnknownError):
            if name != but:
                known.update(*quantities_of(sources, name, homes))
    return known


def known_of(row: Row, sources: Sources) -> set[Quantity]:
    """What constants, formulas and settings of the row say."""
    known = all_quantities(row, sources)
    for text, formula in FORMULAS.get(row.bound, {}).items():
        unit = next((meant.unit for said in numbers_of(text) for meant in said.quantities), "")
        factor = UNITS[text.split()[1]][1] if unit and len(text.split()) > 1 else 1
        known.add(quantity(sources.of_expression(formula.file, formula.expression) * factor, unit))
    for setting in _SETTING.findall(f"{row.bound} {row.value}"):
        known |= of_settings().get(setting.lstrip("."), frozenset())
    return known


def _is_no_status(said: Said) -> bool:
    return "," in said.text or any(meant.unit for meant in said.quantities)


def unchecked_of(row: Row, sources: Sources) -> list[str]:
    """Numbers in figures of the row's value that neither constants, settings nor its files say; and of what happens at
    the bound those that are no statuses."""
    known, excused = known_of(row, sources), UNCHECKED.get(row.bound, {})
    return [
        f"{row.line}: {said.text} stands in no constant, setting or file that the row names"
        for said in [*numbers_of(row.value), *filter(_is_no_status, numbers_of(row.at_the_bound))]
        if not (said.is_word or said.text == "1" or said.text in excused)
        and not said.quantities & known
        and not is_literal(said, row)
    ]
