"""`shardd doctor state`: shows and checks the metadata of a data directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from shardd.config.loader import ConfigError, load_settings
from shardd.log.directory_info import UnknownFormatError, check_format
from shardd.metadata.diagnosis import diagnose_state

EXIT_DAMAGE = 1
EXIT_USAGE = 2


def state(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="SHARDD_CONFIG_PATH", help="Settings, a TOML file.")
    ] = None,
    path: Annotated[Path | None, typer.Option("--path", help="Data directory, instead of system.path.")] = None,
) -> None:
    """Check snapshot and log of the metadata; reads only. Exit status 0: whole, 1: damaged, 2: nothing to check."""
    directory = path
    if directory is None:
        try:
            directory = load_settings(config, os.environ).settings.system.data_directory
        except ConfigError as error:
            for problem in error.problems:
                typer.echo(f"shardd: {problem}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
    if not directory.is_dir():
        typer.echo(f"shardd: {directory} is no directory", err=True)
        raise typer.Exit(EXIT_USAGE)
    try:
        check_format(directory)
    except UnknownFormatError as error:
        typer.echo(f"shardd: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
    inspection = diagnose_state(directory)
    for sentence in inspection.findings:
        typer.echo(sentence)
    for sentence in inspection.damage:
        typer.echo(f"damage: {sentence}")
    if inspection.damage:
        raise typer.Exit(EXIT_DAMAGE)
