"""Typer's commands of what is declared: they help, complete and say what is wrong with what was typed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final

import typer

from shardd.cli.declared import Argument, Command, Family, Lister, Parameter

_COMPLETION_TIMEOUT_S: Final = 2.0
# Other names are not completed: scripts of shells put them into the line as they are, and that of zsh evaluates them.
_COMPLETED: Final = re.compile(r"\w[\w.,:@%+/=-]*")


@cache
def typer_of(family: Family) -> typer.Typer:
    if family.others is None:
        app = typer.Typer(no_args_is_help=True, help=family.about, rich_markup_mode=None)
    else:
        app = family.others()
    for name, inner in family.families.items():
        app.add_typer(typer_of(inner), name=name)
    for name, command in family.commands.items():
        app.command(name)(function_of(command))
    return app


def function_of(command: Command) -> Callable[..., None]:
    """As typer wants it: with its signature."""

    def call(**values: Any) -> None:
        command.run(**values)

    every = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=_annotation(each))
        for each in command.parameters()
    ]
    call.__doc__, call.__name__ = command.function.__doc__, command.function.__name__
    call.__annotations__ = {each.name: each.annotation for each in every}
    call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    return call


def _annotation(parameter: Parameter) -> Any:
    declared = parameter.declared
    if isinstance(declared, Argument):
        complete = None if declared.names is None else _completed(declared.names)
        shown = typer.Argument(
            metavar=declared.metavar, help=declared.about, min=declared.least, autocompletion=complete
        )
    else:
        shown = typer.Option(*declared.names, help=declared.about, min=declared.least, max=declared.most)
    return Annotated[parameter.annotation, shown]


def _completed(names: Lister) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        import asyncio

        from shardd.cli.remote import chosen_settings
        from shardd.cli.standard import awaited
        from shardd.client.client import Client
        from shardd.client.errors import ClientError

        async def ask() -> list[tuple[int, str]]:
            settings = chosen_settings(ctx.params.get("url"), ctx.params.get("context"))
            async with asyncio.timeout(_COMPLETION_TIMEOUT_S), Client(settings=settings) as client:
                await client.connect(0.0)
                return await names(client, ctx.params)

        try:
            return [name for _, name in awaited(ask()) if name.startswith(incomplete) and _COMPLETED.fullmatch(name)]
        except (ClientError, KeyError, TimeoutError, OSError):
            return []  # nothing is said while somebody types

    return complete
