"""`shardd ping`: does a server answer? For health checks."""

from __future__ import annotations

import time

import typer

from shardd.cli.top import EXIT_REFUSED, TopError, check_address
from shardd.cli.whom import whom
from shardd.client import Connection, ConnectionFailedError, RefusedError
from shardd.protocol.codes import Code


def ping_once(given: str | None, timeout_s: float) -> int:
    """The exit status. `given`: None: the server that the client would ask."""
    try:
        address = whom(given).address
        with Connection(check_address(address), timeout_s=timeout_s) as connection:
            begun = time.perf_counter()
            connection.request(Code.PING)
            took_ms = (time.perf_counter() - begun) * 1000
    except (TopError, ConnectionFailedError, RefusedError, ValueError) as error:
        typer.echo(f"shardd: {error}", err=True)
        return EXIT_REFUSED
    typer.echo(f"{address} answers, {took_ms:.1f} ms")
    return 0
