"""The tables of docs/limits.md that are made of the sources: `python -m tests.unit.limits_tables --write` writes them,
tests/unit/test_limits_tables.py compares them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.hostile.matrix.memory import CROWD, LEAST_BYTES, QUIC_SHARE, SUMS, sum_of
from tests.support.source_constants import ROOT, Number, Sources
from tests.unit.rooms import ROOMS, Made, Shared
from tests.unit.test_stored_bounds import BOUNDS
from tests.unit.test_stored_bounds import Shared as Stored

PAGE: Final = ROOT / "docs" / "limits.md"
COMMAND: Final = "python -m tests.unit.limits_tables --write"
BEGIN: Final = f"<!-- {{name}}: made by `{COMMAND}` -->"
END: Final = "<!-- end -->"


def text_of(name: str, value: Number) -> str:
    """A number as the page says it: its unit stands last in the name."""
    if "BYTES" not in name or value % 1024:
        return f"{value:,}"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if not value % factor:
            return f"{int(value) // factor:,} {unit}"
    raise AssertionError(name)


def rooms(sources: Sources) -> list[str]:
    rows = ["| room | in all | share | whose share | when it is full | where |", "|---|---|---|---|---|---|"]
    return rows + [_room(made, shared, sources) for made, shared in ROOMS.items()]


def _room(made: Made, shared: Shared, sources: Sources) -> str:
    in_all, share = shared.said, shared.said_share
    if not in_all:
        named = "" if made.all.isdecimal() else f" (`{made.all}`)"
        in_all = text_of(made.all, sources.of_expression(made.file, made.all)) + named
        if made.part and made.part != made.all:
            share = text_of(made.all, sources.of_expression(made.file, made.part))
    return f"| {shared.what} | {in_all} | {share or '-'} | {shared.whose or '-'} | {shared.full} | {made.file} |"


def stored(sources: Sources) -> list[str]:
    """A row for each stored thing that is shared, with the constants that bound it."""
    constants = dict[Stored, dict[str, str]]()
    for file, names in BOUNDS.items():
        for name, bound in names.items():
            if isinstance(bound, Stored):
                constants.setdefault(bound, {}).setdefault(name, text_of(name, sources.number(file, name)))
    rows = ["| bound | value | of what | owner | share of a user | end |", "|---|---|---|---|---|---|"]
    return rows + [
        f"| {', '.join(f'`{name}`' for name in names)} | {'; '.join(names.values())} | {bound.what} | {bound.owner} "
        f"| {bound.share} | {bound.end} |"
        for bound, names in sorted(constants.items(), key=lambda each: each[0].what)
    ]


def memory(sources: Sources) -> list[str]:
    rows = [
        f"`make test-net` judges each door beside a crowd of {CROWD} connections ({CROWD // QUIC_SHARE} of QUIC) of",
        "one user or one address. All processes of the server together may grow by the sum below, and by",
        f"{_mebibytes(LEAST_BYTES)} MiB where the sum is less: connections, TLS and what Python keeps are beside it.",
        "",
        "| doors | what adds up | sum | judged at |",
        "|---|---|---|---|",
    ]
    for doors, parts in SUMS.items():
        said = "; ".join(f"{part.what}: {_mebibytes(sources.of_expression(*part[1:]))} MiB" for part in parts)
        total = sum_of(doors, sources)
        rows.append(f"| {doors} | {said} | {_mebibytes(total)} MiB | {_mebibytes(max(total, LEAST_BYTES))} MiB |")
    return rows


def _mebibytes(size: Number) -> str:
    return f"{size / (1 << 20):,.4g}"


TABLES: Final = {"rooms": rooms, "memory beside a crowd": memory, "shares of stored things": stored}


def written(page: str, sources: Sources) -> str:
    """The page with its tables as the sources have them."""
    for name, made in TABLES.items():
        before, begin, rest = page.partition(BEGIN.format(name=name))
        _, end, behind = rest.partition(END)
        assert begin and end, f"the page has no place for the table {name}"
        page = before + begin + "\n\n" + "\n".join(made(sources)) + "\n\n" + end + behind
    return page


def main(page: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="docs/limits.md, too")
    text = written(page.read_text(), Sources())
    if parser.parse_args().write:
        page.write_text(text)
    return int(text != page.read_text())


if __name__ == "__main__":
    sys.exit(main())
