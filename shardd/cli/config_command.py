"""`shardd config show`: what is in effect, and where it came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from shardd.config.keys import KEYS, value_of
from shardd.config.loader import ConfigError, Loaded, load_settings
from shardd.config.root_user import resolve_root_user

config_app = typer.Typer(no_args_is_help=True, help="Settings.", rich_markup_mode=None)
_MASK: Final = "********"


@config_app.callback()
def config() -> None:
    """Settings."""


@config_app.command()
def show(
    file: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="SHARDD_CONFIG_PATH", help="Settings, a TOML file.")
    ] = None,
) -> None:
    """Every key, its effective value, and where that came from; secrets are masked."""
    problems: list[str] = []
    rows: list[tuple[str, str, str]] = []
    try:
        rows += _setting_rows(load_settings(file, os.environ))
    except ConfigError as error:
        problems += error.problems
    try:
        root = resolve_root_user(os.environ, default_credentials=False)
        rows += [("first user: name", root.name, root.source), ("first user: password", _MASK, root.source)]
    except ValueError as error:
        problems.append(str(error))
    if problems:
        for problem in problems:
            typer.echo(f"shardd: {problem}", err=True)
        raise typer.Exit(2)
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        typer.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _setting_rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    rows = [(key.path, key.toml(value_of(loaded.settings, key)), loaded.origins[key.path]) for key in KEYS]
    # values of what is not served may be secrets of another server: only the names are shown
    rows += [(name, "-", "not served") for name in loaded.not_served]
    rows += [(name, "-", "unknown") for name in loaded.unknown]
    return rows
