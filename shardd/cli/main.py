"""`shardd`: the commands a person types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardd import __version__
from shardd.cli.backup import backup_app
from shardd.cli.config_command import config_app
from shardd.cli.doctor import doctor_app
from shardd.cli.pipeline import pipeline_app
from shardd.cli.serve import ServeOptions, serve_until_stopped
from shardd.cli.spark_command import spark_app
from shardd.cli.top import watch
from shardd.cli.topic import topic_app

app = typer.Typer(
    name="shardd", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.add_typer(backup_app, name="backup")
app.add_typer(config_app, name="config")
app.add_typer(doctor_app, name="doctor")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(spark_app, name="spark")
app.add_typer(topic_app, name="topic")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardd {__version__}")
        raise typer.Exit


@app.callback()
def shardd(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A persistent message streaming server that Apache Iggy clients talk to unchanged."""


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="SHARDD_CONFIG_PATH", help="Settings, a TOML file.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Data directory, instead of system.path.")] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="User iggy with password iggy, and a temporary data directory.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove all data before the start.")] = False,
    with_default_root_credentials: Annotated[
        bool, typer.Option("--with-default-root-credentials", help="First user iggy with password iggy.")
    ] = False,
    follower: Annotated[
        bool, typer.Option("--follower", help="Tell clients that this node of the cluster is not the leader.")
    ] = False,
) -> None:
    """Run the server in the foreground."""
    options = ServeOptions(config, data, dev, fresh, with_default_root_credentials, follower)
    raise typer.Exit(serve_until_stopped(options))


@app.command()
def top(
    address: Annotated[
        str, typer.Option("--address", "-a", envvar="SHARDD_TCP_ADDRESS", help="Where the server listens.")
    ] = "127.0.0.1:8090",
    username: Annotated[str, typer.Option("--username", "-u", envvar="SHARDD_USERNAME")] = "iggy",
    password: Annotated[
        str, typer.Option("--password", "-p", envvar="SHARDD_PASSWORD", help="Better in the variable.")
    ] = "iggy",
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600.0, help="Seconds between figures.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One interval, then the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each interval.")] = False,
) -> None:
    """Show requests, bytes, times, CPU, pool and queues of each shard of a running server."""
    raise typer.Exit(watch(address, username, password, interval_s=interval, once=once, as_json=as_json))


def main() -> None:
    app()
