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
from shardd.cli.whom import Whom, whom
from shardd.client import Connection, ConnectionFailedError, RefusedError
from shardd.client.errors import SettingsError
from shardd.client.transport import way_to
from shardd.config.digits import number_of
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode

EXIT_REFUSED: Final = 1
_WIDTH_WITHOUT_TERMINAL: Final = 160


class TopError(Exception):
    """Why there is nothing to show; the text is a sentence."""


def check_address(address: str) -> str:
    """ "host:port", "[v6]:port", "unix:/path" or "shardd+tls://host:port?ca_file=...", else TopError."""
    if address.startswith("shardd+tls://"):
        try:
            way_to(address)
        except SettingsError as error:
            raise TopError(f"{address!r} is no address: {error}") from None
        return address
    if address.startswith("unix:/"):
        return address
    host, _, port = address.rpartition(":")
    if not host or not 0 < (number_of(port) or 0) < 65536:
        raise TopError(f"{address!r} is no address; write host:port, unix:/path or shardd+tls://host:port")
    return address


def open_connection(asked: Whom) -> Connection:
    """Logged in at a server that has the metrics. TopError, ConnectionFailedError."""
    address, who = asked
    try:
        connection = Connection(check_address(address), who, timeout_s=30.0)
    except RefusedError as error:
        raise TopError(f"{address} refuses the login of {_name(asked)} (status {error.status})") from error
    try:
        codes = {each.code for each in connection.list_extensions().extensions}
        if ExtensionCode.GET_METRICS not in codes:
            raise TopError(f"the shardd server at {address} has no metrics; it is older than this command")
    except RefusedError as error:
        connection.close()
        if error.status == Status.INVALID_COMMAND:
            raise TopError(f"what answers at {address} is not a shardd server") from error
        raise
    except (ConnectionFailedError, TopError):
        connection.close()
        raise
    return connection


def _name(asked: Whom) -> str:
    return asked.credentials.username or "a token"


def watch(
    address: str | None, username: str | None, password: str | None, *, interval_s: float, once: bool, as_json: bool
) -> int:
    """Shows until interrupted, or one interval; exit status."""
    asked = None
    try:
        asked = whom(address, username, password)
        with open_connection(asked) as connection:
            _watch(connection, asked.address, interval_s, once, as_json)
    except KeyboardInterrupt:
        return 0
    except RefusedError as error:
        if error.status == Status.UNAUTHORIZED and asked is not None:
            sentence = f"user {_name(asked)} may not read the server; it needs the permission read_servers"
        else:
            sentence = str(error)
        typer.echo(printable(f"shardd: {sentence}"), err=True)
        return EXIT_REFUSED
    except (ConnectionFailedError, TopError, ValueError) as error:
        typer.echo(printable(f"shardd: {error}"), err=True)
        return EXIT_REFUSED
    return 0


def _watch(connection: Connection, address: str, interval_s: float, once: bool, as_json: bool) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_WITHOUT_TERMINAL)
    before = connection.metrics()
    live = Live(console=console, screen=True, auto_refresh=False) if console.is_terminal and not once else None
    if live is None or as_json:
        while True:
            time.sleep(interval_s)
            after = connection.metrics()
            _print(console, compare(before, after), address, as_json)
            if once:
                return
            before = after
    with live:
        while True:
            time.sleep(interval_s)
            after = connection.metrics()
            live.update(tables(compare(before, after), address), refresh=True)
            before = after


def _print(console: Console, view: View, address: str, as_json: bool) -> None:
    if as_json:
        typer.echo(harmless(msgspec.json.encode(view).decode()))
    else:
        console.print(tables(view, address))
