"""What runs without typer gets the values that typer would give, and imports nothing of it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shardd.cli.declared import Command, Family, Option
from shardd.cli.direct import direct
from shardd.cli.families import ALONE, FAMILIES
from shardd.cli.typed import function_of
from tests.support.generated import examples

WORDS = [
    "a",
    "0",
    "7",
    "07",
    "-1",
    "-5",
    "1.5",
    "1000",
    "1001",
    "99999999999999999999",
    "1_0",
    "+1",
    " 1",
    "",
    "-",
    "--",
]
WORDS += ["json", "JSON", "table", "earliest", "@-1h", "k=v", "--help", "--unknown", "-z", "é", "a\nb", "nan", "1e3"]
NO_OTHERS = {"typer", "pydantic", "rich", "msgspec", "click", "ctypes", "shardd.protocol", "difflib"}


def declared(family: Family, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Command]]:
    for name, command in family.commands.items():
        yield (*path, name), command
    for name, inner in family.families.items():
        yield from declared(inner, (*path, name))


def everything() -> dict[str, Command]:
    found: dict[str, Command] = {}
    for name, place in (FAMILIES | ALONE).items():
        family = getattr(importlib.import_module(place[0]), place[1])
        if isinstance(family, Family):
            path = () if name in ALONE else (name,)
            found |= {" ".join(words): command for words, command in declared(family, path)}
    return found


ALL = everything()


def by_typer(command: Command, words: list[str]) -> dict[str, Any] | None:
    """The values; None when it says something instead."""
    got: list[dict[str, Any]] = []
    app = typer.Typer()
    app.command()(function_of(command._replace(run=lambda **values: got.append(values))))
    done = CliRunner().invoke(app, words)
    return got[0] if done.exit_code == 0 and got else None


def same(values: dict[str, Any]) -> dict[str, Any]:
    """None and no item of a list mean the same."""
    return {name: value or None if isinstance(value, list) else value for name, value in values.items()}


def line(draw: st.DrawFn, command: Command) -> list[str]:
    """Options with and without values, words between them, sometimes too many or too few."""
    parameters = command.parameters()
    names = [
        part
        for each in parameters
        if isinstance(each.declared, Option)
        for option in each.declared.names
        for part in option.split("/")
    ]
    word = st.sampled_from(WORDS)
    option = st.sampled_from(names or ["a"])
    piece = st.one_of(
        word.map(lambda found: [found]),
        option.map(lambda found: [found]),
        st.tuples(option, word).map(list),
        st.tuples(option, word).map(lambda pair: ["=".join(pair)]),
    )
    arguments = sum(not isinstance(each.declared, Option) for each in parameters)
    pieces = draw(st.lists(piece, max_size=4))
    pieces += [[draw(st.sampled_from(["a", "7", "stream"]))] for _ in range(draw(st.integers(0, arguments + 1)))]
    return [each for part in draw(st.permutations(pieces)) for each in part]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_values_are_those_of_typer(name: str, data: st.DataObject) -> None:
    command = ALL[name]
    words = data.draw(st.composite(line)(command))
    found = direct([*name.split(), *words])
    if found is None:
        return
    assert same(found.keywords) == same(by_typer(command, words) or {}), words  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("topic create s t --partitions 3 -o json", {"stream": "s", "name": "t", "partitions": 3, "output": "json"}),
        ("consume s t -o -5 -p 0 -p 2 --follow", {"offset": "-5", "partition": [0, 2], "follow": True}),
        ("consume s t --offset=-5 --grep=a=b", {"offset": "-5", "grep": "a=b", "follow": False}),
        ("message tail s t --no-follow -n 3", {"follow": False, "count": 3, "as_json": False}),
        ("produce s t a b --rate 1.5", {"files": [Path("a"), Path("b")], "rate": 1.5}),
        ("serve --fresh --data d", {"fresh": True, "data": Path("d"), "config": None}),
        ("user update u --inactive", {"active": False, "grant": None}),
        ("topic settings set s t a=1 b=2", {"settings": ["a=1", "b=2"]}),
    ],
)
def test_what_people_type_is_run_directly(words: str, values: dict[str, Any]) -> None:
    found = direct(words.split())
    assert found is not None
    assert values.items() <= found.keywords.items()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "words",
    [
        *("", "serve --fresh=1", "stream", "stream --help", "stream create", "stream list x", "stream lits"),
        "topic get s t",
        *("topic create s t --partitions 1001", "topic create s t --partitions x", "stream list -o xml", "backup list"),
    ],
)
def test_everything_else_is_left_to_typer(words: str) -> None:
    assert direct(words.split()) is None


@pytest.mark.parametrize("words", ["stream list", "consume s t", "produce s t /dev/null", "lag s t g", "token list"])
def test_what_runs_directly_imports_nothing_of_typer(words: str) -> None:
    code = (
        "import sys; from shardd.cli.direct import direct; run = direct(sys.argv[1:])\n"
        "try: run()\n"
        "except SystemExit as ended: assert ended.code == 6, ended.code\n"
        "print(*sys.modules)"
    )
    asked = [*words.split(), "--url", "shardd://token@127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, check=True, timeout=60)
    imported = set(done.stdout.split())
    assert "shardd.client.session" in imported
    assert not imported & NO_OTHERS
