"""`shardd ping`: does a server answer? For health checks."""

from __future__ import annotations

import time
from dataclasses import replace

import typer

from shardd.cli.whom import EXIT_REFUSED, whom
from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.client.errors import ClientError


def ping_once(given: str | None, timeout_s: float) -> int:
    """The exit status. `given`: None: the server that the client would ask."""
    try:
        settings = replace(whom(given), username="", password="", token="")
        with BlockingLink(settings, timeout_s=timeout_s) as link:
            begun = time.perf_counter()
            link.call(commands.ping())
            took_ms = (time.perf_counter() - begun) * 1000
    except (ClientError, ValueError) as error:
        typer.echo(f"shardd: {error}", err=True)
        return EXIT_REFUSED
    typer.echo(f"{settings.address} answers, {took_ms:.1f} ms")
    return 0
