"""The process of the door for HTTP. Only the supervisor starts it."""

from __future__ import annotations

import asyncio
import logging

from shardd.doors.asgi import Application, serve_app
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.door import Door
from shardd.doors.handshake_counts import tell_handshakes
from shardd.doors.hosts import AllowedHosts
from shardd.doors.http.access_log import AccessLog
from shardd.doors.http.app import make_application
from shardd.doors.http.options import HttpOptions, decode_options
from shardd.doors.openings import Openings
from shardd.doors.tls import tls_context


async def serve(door: Door) -> None:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what strangers send is no line of the log
    options = decode_options(door.options)
    application, clients = make_application(door, options)
    await _any_worker(door)
    openings = Openings()
    telling = tell_handshakes(door, "tell_handshakes_of_http", openings.counts, lambda: openings.waiting)
    beside = [asyncio.create_task(each) for each in (clients.sweep(), telling)]
    try:
        hosts = AllowedHosts("http.allowed_hosts", options.http.allowed_hosts, door.listeners[0])
        tls = tls_context(door, "http.tls", hosts.learn_certificate) if options.http.tls.enabled else None
        logged = AccessLog if options.http.access_log else _unlogged
        await serve_app(application, hosts, door.listeners[0], _limits(options), door.ready, tls, logged, openings)
    finally:
        for each in beside:
            each.cancel()


def _unlogged(application: Application) -> Application:
    return application


async def _any_worker(door: Door) -> None:
    """One is enough: the others may be on their way back, or given up."""
    waiting = [asyncio.create_task(link.connected.wait()) for link in door.links]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


def _limits(options: HttpOptions) -> AsgiLimits:
    return AsgiLimits(
        connections_max=options.connections_max,
        connections_per_address_max=options.connections_per_address_max,
        head_timeout_s=options.server.partial_frame_timeout_ms / 1000,
        slow_reader_timeout_s=options.server.slow_reader_timeout_ms / 1000,
        proxies=options.proxies.networks if options.proxies.http else (),
        introducing=options.proxies.networks if options.proxies.http_header else (),
    )
