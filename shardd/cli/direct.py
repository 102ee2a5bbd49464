"""Runs a command without typer, when its words are as declared and leave no question."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from shardd.cli.declared import Argument, Command, Family, Option, Parameter
from shardd.cli.families import ALONE, FAMILIES

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_NUMBER: Final = re.compile(r"(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?", re.ASCII)


class _AnotherWayError(Exception):
    """Typer is asked: it helps, or says what is wrong."""


def direct(words: list[str]) -> Callable[[], None] | None:
    """What runs the command. None: typer is asked."""
    try:
        command, rest = _command(words)
        return functools.partial(command.run, **values_of(command.parameters(), rest))
    except _AnotherWayError:
        return None


def _command(words: list[str]) -> tuple[Command, list[str]]:
    place = (FAMILIES | ALONE).get(words[0]) if words else None
    family = None if place is None else getattr(importlib.import_module(place[0]), place[1])
    if not isinstance(family, Family):
        raise _AnotherWayError
    rest = words if words[0] in ALONE else words[1:]
    while rest and rest[0] in family.families:
        family, rest = family.families[rest[0]], rest[1:]
    if not rest or rest[0] not in family.commands:
        raise _AnotherWayError
    return family.commands[rest[0]], rest[1:]


def values_of(parameters: list[Parameter], words: list[str]) -> dict[str, Any]:
    """By name. _AnotherWayError."""
    options = dict(_options(parameters))
    given: dict[str, Any] = {}
    bare: list[str] = []
    left = iter(words)
    for word in left:
        if not word or not word.isprintable() or word == "--":
            raise _AnotherWayError
        if word[0] != "-" or word == "-":
            bare.append(word)
            continue
        name, mark, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in options:
            raise _AnotherWayError
        parameter, flag = options[name]
        if flag is not None:
            if mark:
                raise _AnotherWayError
            given[parameter.name] = flag
            continue
        found = _converted(parameter, value if mark else next(left, ""))
        if parameter.many:
            given.setdefault(parameter.name, []).append(found)
        else:
            given[parameter.name] = found
    given |= _placed([each for each in parameters if isinstance(each.declared, Argument)], bare)
    if any(each.required and each.name not in given for each in parameters):
        raise _AnotherWayError
    return {each.name: given.get(each.name, each.default) for each in parameters}


def _options(parameters: list[Parameter]) -> Iterator[tuple[str, tuple[Parameter, bool | None]]]:
    """Name on the command line -> parameter, and what a flag means."""
    for parameter in parameters:
        if not isinstance(parameter.declared, Option):
            continue
        for names in parameter.declared.names:
            on, _, off = names.partition("/")
            flag = parameter.kind is bool
            yield on, (parameter, True if flag else None)
            if off:
                yield off, (parameter, False)


def _placed(arguments: list[Parameter], words: list[str]) -> dict[str, Any]:
    """The words without a name, in their order."""
    given: dict[str, Any] = {}
    for parameter in arguments:
        if parameter.many and words:
            given[parameter.name] = [_converted(parameter, word) for word in words]
            words = []
        elif words:
            given[parameter.name] = _converted(parameter, words[0])
            words = words[1:]
    if words:
        raise _AnotherWayError
    return given


def _converted(parameter: Parameter, word: str) -> Any:
    kind, declared = parameter.kind, parameter.declared
    if not word or not word.isprintable():
        raise _AnotherWayError
    if kind in (int, float):
        if not (_INTEGER if kind is int else _NUMBER).fullmatch(word):
            raise _AnotherWayError
        number = kind(word)
        most = declared.most if isinstance(declared, Option) else None
        if (declared.least is not None and number < declared.least) or (most is not None and number > most):
            raise _AnotherWayError
        return number
    if kind in (str, Path):
        return kind(word)
    if word not in list(kind):  # an enumeration of texts
        raise _AnotherWayError
    return kind(word)
