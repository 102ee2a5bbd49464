"""`shardd`: the commands a person types."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from shardd import __version__
from shardd.cli.declared import Family
from shardd.cli.families import ALONE, FAMILIES
from shardd.cli.options import Address, ConfigFile, DataDirectory, Password, Username
from shardd.cli.start import COMPLETE

_DIGITS_MAX: Final = 6  # of the number of a word in a line


class _Commands(TyperGroup):
    """The commands of this module, and those of the groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = [name for name in super().list_commands(ctx) if name not in FAMILIES and name not in ALONE]
        first, *others = ALONE
        return [first, *own, *others, *FAMILIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = cmd_name in self.commands or cmd_name in FAMILIES or cmd_name in ALONE
        for name in [cmd_name] if known else (*ALONE, *FAMILIES):  # a mistyped one: all that may have been meant
            if name not in self.commands:
                loaded = _application(*(FAMILIES | ALONE)[name])
                self.add_command(_single(loaded, name) if name in ALONE else typer.main.get_group(loaded), name)
        return super().get_command(ctx, cmd_name)


def _application(module: str, name: str) -> typer.Typer:
    found: Family | typer.Typer = getattr(importlib.import_module(module), name)
    if not isinstance(found, Family):
        return found
    from shardd.cli.typed import typer_of

    return typer_of(found)


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
def ping(
    address: Address = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds.")] = 5.0,
) -> None:
    """Ask a server whether it answers; no login. Exit status 1 and a sentence when it does not."""
    from shardd.cli.ping import ping_once

    raise typer.Exit(ping_once(address, timeout))


@app.command()
def login(
    context: Annotated[str | None, typer.Option("--context", "-C", help="Where to save it.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="shardd://host:port")] = None,
    username: Username = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from there.")] = False,
    expiry_days: Annotated[float, typer.Option("--expiry-days", min=0.0, help="Of the token; 0: never.")] = 30.0,
) -> None:
    """Save a token for a server, so that no password is needed."""
    from shardd.cli.contexts import log_in
    from shardd.cli.durations import token_expiry_us
    from shardd.cli.remote import CommandError, end

    try:
        expiry_us = token_expiry_us(expiry_days)
    except CommandError as error:
        end(str(error), error.status)
    log_in(context, url, username, password_stdin=password_stdin, expiry_us=expiry_us)


@app.command()
def logout(context: Annotated[str | None, typer.Option("--context", "-C", help="Which.")] = None) -> None:
    """End the token of a context, at the server too."""
    from shardd.cli.contexts import log_out

    log_out(context)


@app.command()
def top(
    address: Address = None,
    username: Username = None,
    password: Password = None,
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600.0, help="Seconds between figures.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One interval, then the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each interval.")] = False,
) -> None:
    """Show requests, bytes, times, CPU, pool and queues of each shard of a running server."""
    from shardd.cli.top import watch

    raise typer.Exit(watch(address, username, password, interval_s=interval, once=once, as_json=as_json))


@app.command()
def drain(
    config: ConfigFile = None,
    data: DataDirectory = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds; then the server stops with clients connected.")
    ] = 60.0,
) -> None:
    """Stop the server on this machine when its clients have gone: it takes no new ones.

    Exit status 0: all had gone; 1: some were cut off at the timeout, or no server runs; 2: the settings are wrong.
    """
    from shardd.cli.drain import drain_server

    raise typer.Exit(drain_server(config, data, timeout))


@app.command()
def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh")]) -> None:
    """Print a script for the shell: `eval "$(shardd completion bash)"`."""
    from typer._completion_shared import get_completion_script

    if shell not in ("bash", "zsh"):
        typer.echo(f"shardd: there is completion for bash and zsh, not for {shell}", err=True)
        raise typer.Exit(2)
    typer.echo(get_completion_script(prog_name="shardd", complete_var=COMPLETE, shell=shell))


def _settle_the_line() -> None:
    """A number that bash does not give, or gives without sense, means a word behind the last one: a complaint would
    stand in the line that a user types."""
    line, word = os.environ.setdefault("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if not (word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX):
        os.environ["COMP_CWORD"] = str(len(line.split()))


def main() -> None:
    if COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        _settle_the_line()
        completion_init()
    app(prog_name="shardd")
