"""`shardd doctor state`: shows and checks the metadata of a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardd.cli.options import EXIT_USAGE, ConfigFile, settings_of
from shardd.cli.output import printable
from shardd.log.directory_info import UnknownFormatError, check_format
from shardd.metadata.diagnosis import diagnose_state

EXIT_DAMAGE = 1


def state(
    config: ConfigFile = None,
    path: Annotated[Path | None, typer.Option("--path", help="Data directory, instead of system.path.")] = None,
) -> None:
    """Check snapshot and log of the metadata; reads only. Exit status 0: whole, 1: damaged, 2: nothing to check."""
    directory = path or settings_of(config).system.data_directory
    if not directory.is_dir():
        typer.echo(printable(f"shardd: {directory} is no directory"), err=True)
        raise typer.Exit(EXIT_USAGE)
    try:
        check_format(directory)
    except UnknownFormatError as error:
        typer.echo(printable(f"shardd: {error}"), err=True)
        raise typer.Exit(EXIT_USAGE) from error
    inspection = diagnose_state(directory)
    for sentence in inspection.findings:
        typer.echo(printable(sentence))
    for sentence in inspection.damage:
        typer.echo(printable(f"damage: {sentence}"))
    if inspection.damage:
        raise typer.Exit(EXIT_DAMAGE)
