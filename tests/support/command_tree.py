"""All commands of the command line, as typer knows them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import typer

from shardd.cli.main import app


def commands(left_out: Collection[str] = ()) -> dict[tuple[str, ...], list[Any]]:
    """The parameters of each, by its words. `left_out`: families by their first word."""
    return dict(_below(typer.main.get_command(app), (), left_out))


def _below(
    command: Any, words: tuple[str, ...], left_out: Collection[str]
) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    if not hasattr(command, "list_commands"):
        yield words, list(command.params)
        return
    context = typer.Context(command, info_name="shardd")
    for name in command.list_commands(context):
        if words or name not in left_out:
            yield from _below(command.get_command(context, name), (*words, name), left_out)
