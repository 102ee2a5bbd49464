"""What `shardd bench` does when all of its words are read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import typer

from shardd.benchmark.kinds import KINDS
from shardd.benchmark.options import BenchError, Options, Output
from shardd.benchmark.profiles import PROFILES

_NAMES: Final = {name for kind in KINDS for name in (kind.name, kind.alias)} | {each.name for each in PROFILES}


def run_bench(chosen: dict[str, Any], told: Output) -> None:
    """`chosen`: fields of Options, and `as_json`, `against`, `rounds`. typer.Exit."""
    import json

    from shardd.benchmark.live import LiveView
    from shardd.benchmark.run import benchmark, benchmark_against

    names = ("as_json", "against", "rounds", "given")
    as_json, against, rounds = (chosen[name] for name in names[:3])
    values = {name: value for name, value in chosen.items() if name not in names}
    options = Options(**values, command=without_password(["shardd", *sys.argv[1:]]))
    say: Callable[[str], None] = (lambda line: None) if as_json else typer.echo
    told = replace(told, watch=LiveView())
    try:
        found = benchmark_against(options, told, against, rounds, say) if against else benchmark(options, told, say)
    except BenchError as error:
        typer.echo(f"shardd: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(found))


def without_password(words: list[str]) -> str:
    kind = next((at for at, word in enumerate(words) if word in _NAMES), len(words))
    for at in range(1, kind):
        if words[at - 1] in ("-p", "--password"):
            words[at] = "***"
        elif words[at].startswith("--password="):
            words[at] = "--password=***"
    return shlex.join(words)
