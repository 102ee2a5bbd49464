"""`shardd top`: the figures of a running server, shard by shard."""

from __future__ import annotations

import time
from typing import Final

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from shardd.cli.output import harmless, printable
from shardd.cli.top_view import View, compare, tables
from shardd.cli.whom import EXIT_REFUSED, whom
from shardd.client import commands, statuses
from shardd.client.blocking import BlockingLink
from shardd.client.errors import ClientError, PermissionDeniedError, ServerError
from shardd.client.settings import Settings

_WIDTH_WITHOUT_TERMINAL: Final = 160


class TopError(Exception):
    """Why there is nothing to show; the text is a sentence."""


def _log_in(settings: Settings) -> BlockingLink:
    """TopError, ClientError."""
    try:
        return BlockingLink(settings)
    except ServerError as error:
        raise TopError(f"{settings.address} refuses the login of {_name(settings)} (status {error.status})") from error


def _check_metrics(link: BlockingLink, address: str) -> None:
    """TopError when the server has none."""
    try:
        codes = {each.code for each in link.call(commands.extensions()).commands}
    except ServerError as error:
        if error.status == statuses.INVALID_COMMAND:
            raise TopError(f"what answers at {address} is not a shardd server") from error
        raise
    if commands.metrics().code not in codes:
        raise TopError(f"the shardd server at {address} has no metrics; it is older than this command")


def _name(settings: Settings) -> str:
    return settings.username or "a token"


def watch(
    address: str | None, username: str | None, password: str | None, *, interval_s: float, once: bool, as_json: bool
) -> int:
    """Shows until interrupted, or one interval; exit status."""
    sentence = ""
    try:
        settings = whom(address, username, password)
        sentence = f"user {_name(settings)} may not read the server; it needs the permission read_servers"
        with _log_in(settings) as link:
            _check_metrics(link, settings.address)
            _watch(link, settings.address, interval_s, once, as_json)
    except KeyboardInterrupt:
        return 0
    except PermissionDeniedError:
        typer.echo(printable(f"shardd: {sentence}"), err=True)
        return EXIT_REFUSED
    except (ClientError, TopError, ValueError) as error:
        typer.echo(printable(f"shardd: {error}"), err=True)
        return EXIT_REFUSED
    return 0


def _watch(link: BlockingLink, address: str, interval_s: float, once: bool, as_json: bool) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_WITHOUT_TERMINAL)
    before = link.call(commands.metrics())
    live = Live(console=console, screen=True, auto_refresh=False) if console.is_terminal and not once else None
    if live is None or as_json:
        while True:
            time.sleep(interval_s)
            after = link.call(commands.metrics())
            _print(console, compare(before, after), address, as_json)
            if once:
                return
            before = after
    with live:
        while True:
            time.sleep(interval_s)
            after = link.call(commands.metrics())
            live.update(tables(compare(before, after), address), refresh=True)
            before = after


def _print(console: Console, view: View, address: str, as_json: bool) -> None:
    if as_json:
        typer.echo(harmless(msgspec.json.encode(view).decode()))
    else:
        console.print(tables(view, address))
