"""Commands and their parameters as they are declared, without typer: to import that takes longer than most commands.

`shardd.cli.direct` runs a command whose words are as declared. For everything else (help, faults, completion)
`shardd.cli.typed` makes typer's commands of the same declarations.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import typer

    from shardd.client.client import Client

Lister = Callable[["Client", dict[str, Any]], Awaitable[list[tuple[int, str]]]]
"""Ids and names of a server, by what has been typed so far."""


class Argument(NamedTuple):
    """A word without a name; a list takes all that are left. `names`: what completes it."""

    metavar: str | None = None
    about: str | None = None
    least: int | None = None
    names: Lister | None = None


class Option:
    """`names`: "--count", "-n"; "--follow/--no-follow" for yes and no."""

    def __init__(
        self, *names: str, about: str | None = None, least: float | None = None, most: float | None = None
    ) -> None:
        self.names, self.about, self.least, self.most = names, about, least, most


class Parameter(NamedTuple):
    """`kind`: of one word. `many`: a list of them. `annotation`: the type without how it is declared."""

    name: str
    kind: Any
    many: bool
    declared: Argument | Option
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Command(NamedTuple):
    """`function`: whose parameters and docstring they are, behind the first `skipped` ones. `common`: names, types and
    defaults of further ones. `run` gets all values by name."""

    function: Callable[..., Any]
    run: Callable[..., None]
    skipped: int = 0
    common: tuple[tuple[str, Any, Any], ...] = ()

    def parameters(self) -> list[Parameter]:
        hints = get_type_hints(self.function, include_extras=True)
        own = list(inspect.signature(self.function).parameters.values())[self.skipped :]
        found = [_parameter(each.name, hints[each.name], each.default) for each in own]
        return found + [_parameter(*each) for each in self.common]


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    annotation, declared = get_args(hint)
    kinds = [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [each for each in get_args(annotation) if each is not types.NoneType]
    many = get_origin(kinds[0]) is list
    return Parameter(name, get_args(kinds[0])[0] if many else kinds[0], many, declared, annotation, default)


class Family:
    """Commands behind one word, in the order of their help. `others`: the application that has further ones, on
    typer."""

    def __init__(self, about: str = "", others: Callable[[], typer.Typer] | None = None) -> None:
        self.about, self.others = about, others
        self.commands: dict[str, Command] = {}
        self.families: dict[str, Family] = {}

    def command(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def register(function: Callable[..., None]) -> Callable[..., None]:
            self.commands[name] = Command(function, function)
            return function

        return register
