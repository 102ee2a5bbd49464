"""`shardd`: the commands a person types."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from shardd import __version__

# name -> the typer application and its module, imported when it is asked for: `serve` waits for none of them
_GROUPS: Final = {
    "backup": ("shardd.cli.backup", "backup_app"),
    "client": ("shardd.cli.users", "client_app"),
    "context": ("shardd.cli.contexts", "context_app"),
    "config": ("shardd.cli.config_command", "config_app"),
    "debug": ("shardd.cli.inspect_server", "debug_app"),
    "doctor": ("shardd.cli.doctor", "doctor_app"),
    "group": ("shardd.cli.groups", "group_app"),
    "message": ("shardd.cli.messages", "message_app"),
    "offset": ("shardd.cli.groups", "offset_app"),
    "partition": ("shardd.cli.partitions", "partition_app"),
    "pipeline": ("shardd.cli.pipeline_topics", "pipeline_app"),
    "retention": ("shardd.cli.retention", "retention_app"),
    "segment": ("shardd.cli.partitions", "segment_app"),
    "spark": ("shardd.cli.spark_command", "spark_app"),
    "stream": ("shardd.cli.streams", "stream_app"),
    "tls": ("shardd.cli.tls", "tls_app"),
    "token": ("shardd.cli.users", "token_app"),
    "topic": ("shardd.cli.topics", "topic_app"),
    "upgrade": ("shardd.cli.upgrade", "upgrade_app"),
    "user": ("shardd.cli.users", "user_app"),
}


# commands by themselves that ask a server: the application that has them, and its module
_COMMANDS: Final = {
    "produce": ("shardd.cli.messages", "flow_app"),
    "consume": ("shardd.cli.messages", "flow_app"),
    "lag": ("shardd.cli.groups", "lag_app"),
    "stats": ("shardd.cli.inspect_server", "server_app"),
    "snapshot": ("shardd.cli.inspect_server", "server_app"),
}


_COMPLETE: Final = "_SHARDD_COMPLETE"


class _Commands(TyperGroup):
    """The commands of this module, and those of the groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = [name for name in super().list_commands(ctx) if name not in _GROUPS and name not in _COMMANDS]
        return [*own, *_COMMANDS, *_GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = cmd_name in self.commands or cmd_name in _GROUPS or cmd_name in _COMMANDS
        for name in [cmd_name] if known else (*_COMMANDS, *_GROUPS):  # a mistyped one: all that may have been meant
            if name not in self.commands:
                module, application = (_GROUPS | _COMMANDS)[name]
                loaded = getattr(importlib.import_module(module), application)
                self.add_command(_single(loaded, name) if name in _COMMANDS else typer.main.get_group(loaded), name)
        return super().get_command(ctx, cmd_name)


def _single(application: Any, name: str) -> Any:
    """The command of an application that may have one alone."""
    found: Any = typer.main.get_command(application)
    return getattr(found, "commands", {name: found})[name]


app = typer.Typer(
    name="shardd",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    from shardd.cli.serve import ServeOptions, serve_until_stopped

    options = ServeOptions(config, data, dev, fresh, with_default_root_credentials, follower)
    raise typer.Exit(serve_until_stopped(options))


@app.command()
def ping(
    address: Annotated[
        str, typer.Option("--address", "-a", envvar="SHARDD_TCP_ADDRESS", help="Where the server listens.")
    ] = "127.0.0.1:8090",
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds.")] = 5.0,
) -> None:
    """Ask a server whether it answers; no login. Exit status 1 and a sentence when it does not."""
    from shardd.cli.ping import ping_once

    raise typer.Exit(ping_once(address, timeout))


@app.command()
def login(
    context: Annotated[str | None, typer.Option("--context", "-C", help="Where to save it.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="shardd://host:port")] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", envvar="SHARDD_USERNAME")] = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from there.")] = False,
    expiry_days: Annotated[float, typer.Option("--expiry-days", min=0.0, help="Of the token; 0: never.")] = 30.0,
) -> None:
    """Save a token for a server, so that no password is needed."""
    from shardd.cli.contexts import log_in

    expiry_us = int(expiry_days * 86_400_000_000)
    log_in(context, url, username, password_stdin=password_stdin, expiry_us=expiry_us)


@app.command()
def logout(context: Annotated[str | None, typer.Option("--context", "-C", help="Which.")] = None) -> None:
    """End the token of a context, at the server too."""
    from shardd.cli.contexts import log_out

    log_out(context)


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
    from shardd.cli.top import watch

    raise typer.Exit(watch(address, username, password, interval_s=interval, once=once, as_json=as_json))


@app.command()
def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh")]) -> None:
    """Print a script for the shell: `eval "$(shardd completion bash)"`."""
    from typer._completion_shared import get_completion_script

    if shell not in ("bash", "zsh"):
        typer.echo(f"shardd: there is completion for bash and zsh, not for {shell}", err=True)
        raise typer.Exit(2)
    typer.echo(get_completion_script(prog_name="shardd", complete_var=_COMPLETE, shell=shell))


def main() -> None:
    if _COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    app(prog_name="shardd")
