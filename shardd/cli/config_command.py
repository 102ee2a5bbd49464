"""`shardd config show`: what is in effect, and where it came from; `set`: one key of the file; `reload`: a running
server reads it again."""

from __future__ import annotations

import os
import signal
from typing import Annotated, Final

import typer

from shardd.cli.options import ConfigFile, DataDirectory, settings_of
from shardd.config.keys import KEYS, value_of
from shardd.config.loader import ConfigError, Loaded, load_settings
from shardd.config.root_user import resolve_root_user

config_app = typer.Typer(no_args_is_help=True, help="Settings.", rich_markup_mode=None)
_MASK: Final = "********"


@config_app.callback()
def config() -> None:
    """Settings."""


@config_app.command()
def show(file: ConfigFile = None) -> None:
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


@config_app.command("set")
def set_(
    key: Annotated[str, typer.Argument(help="As in the file: system.logging.level.")],
    value: Annotated[str, typer.Argument(help="As in the file; quotes of a text may be left out.")],
    file: ConfigFile = None,
    data: DataDirectory = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
) -> None:
    """Changes one key of the settings file, and of the server that runs with it if that key can change at once: the
    log level and limits of connections. It says when a restart is needed.

    Exit status 0: done; 1: the file cannot be written, or the server did not take it; 2: the key or value is wrong.
    """
    from shardd.cli.config_set import SettingRefusedError, set_key

    try:
        typer.echo(set_key(file, key, value, data, dry_run=dry_run))
    except SettingRefusedError as error:
        typer.echo(f"shardd: {error}", err=True)
        raise typer.Exit(error.status) from error


@config_app.command()
def reload(
    file: ConfigFile = None,
    data: DataDirectory = None,
) -> None:
    """Makes the server read its settings and certificates again. The log level and limits of connections change at
    once; the log of the server names what else has changed and needs a restart.

    Exit status 0: it was told; 1: no server runs; 2: the settings are wrong.
    """
    from shardd.cli.holder import NoServerError, holder_of

    settings = settings_of(file, data)
    try:
        supervisor = holder_of(settings.system.data_directory)
        os.kill(supervisor, signal.SIGUSR1)
    except (NoServerError, ProcessLookupError, PermissionError) as error:
        typer.echo(f"shardd: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"process {supervisor} reads its settings again; its log says how that went")


def _setting_rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    rows = [(key.path, key.toml(value_of(loaded.settings, key)), loaded.origins[key.path]) for key in KEYS]
    # values of what is not served may be secrets of another server: only the names are shown
    rows += [(name, "-", "not served") for name in loaded.not_served]
    rows += [(name, "-", "unknown") for name in loaded.unknown]
    return rows
