"""Options that several commands have: the settings of a server on this machine, or where a server listens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from shardd.config.loader import Loaded
    from shardd.config.schema import Settings

EXIT_USAGE: Final = 2
ADDRESS_HELP: Final = "Where the server listens; else SHARDD_URL, the context, 127.0.0.1:8090."
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="SHARDD_CONFIG_PATH", help="Settings, a TOML file.")
]
DataDirectory = Annotated[Path | None, typer.Option("--data", help="Data directory, instead of system.path.")]
Address = Annotated[str | None, typer.Option("--address", "-a", envvar="SHARDD_TCP_ADDRESS", help=ADDRESS_HELP)]
Username = Annotated[str | None, typer.Option("--username", "-u", envvar="SHARDD_USERNAME")]
Password = Annotated[
    str | None, typer.Option("--password", "-p", envvar="SHARDD_PASSWORD", help="Better in the variable.")
]


def settings_of(config: Path | None, data: Path | None = None) -> Settings:
    """Those that `shardd serve` would have. Exit status 2 and a line for each problem when they are wrong."""
    return loaded_of(config, data).settings


def loaded_of(config: Path | None, data: Path | None = None) -> Loaded:
    """`settings_of`, with where each of them comes from."""
    from shardd.config.loader import ConfigError, load_settings  # the commands of `main` start without it

    try:
        return load_settings(config, os.environ, {"system.path": str(data)} if data is not None else {})
    except ConfigError as error:
        for sentence in error.problems:
            typer.echo(f"shardd: {sentence}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
