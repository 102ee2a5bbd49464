"""What is put under load: a server that somebody runs, or one that is started for a measurement and gone after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from shardd.benchmark.options import BenchError, Options, Tls
from shardd.benchmark.servers.base import Server
from shardd.benchmark.servers.floor import Floor
from shardd.benchmark.servers.nats import Nats
from shardd.benchmark.servers.own import OwnShardd
from shardd.benchmark.servers.redis import Redis
from shardd.benchmark.servers.wire import Wire
from shardd.client.errors import SettingsError
from shardd.client.transport import way_to

STARTED: Final[dict[str, type[Server]]] = {"shardd": OwnShardd, "floor": Floor, "redis": Redis, "nats": Nats}
"""By name: those that are started."""


def server_of(options: Options) -> Server:
    """The server that the options name. BenchError: it cannot be had, or cannot do this kind."""
    server = STARTED["shardd"]() if options.own else Wire()
    server.check(options)
    return server


def named(name: str, options: Options) -> tuple[Server, Options]:
    """One of STARTED, or an address; with the options that reach it. BenchError."""
    if name in STARTED:
        server = STARTED[name]()
        options = replace(options, own=True)
        if name != "shardd":  # these are there over TCP alone
            options = replace(options, tls=None, websocket=False, unix_path="", dialect="0.8")
    else:
        try:
            settings = way_to(name)
        except SettingsError as error:
            there = ", ".join(STARTED)
            raise BenchError(f"--against {name}: {there}, an address, or a saved report; {error}") from None
        unix = settings.unix_path
        tls = Tls(settings.server_name, settings.ca_file, True) if settings.tls else None
        address = "" if unix else settings.address
        options = replace(options, own=False, unix_path=unix, server_address=address, tls=tls, websocket=False)
        server = Wire()
    server.check(options)
    return server, options


def is_report(name: str) -> bool:
    return name not in STARTED and not name.startswith("unix:") and Path(name).exists()


__all__ = ["STARTED", "Server", "is_report", "named", "server_of"]
