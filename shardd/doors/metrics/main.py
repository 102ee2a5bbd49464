"""The process of the door for metrics. Only the supervisor starts it, before there are workers: a probe that asks
while partitions are recovered hears that the server lives and is not ready."""

from __future__ import annotations

import logging
from typing import Final

from shardd.doors.asgi import serve_app
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.door import Door
from shardd.doors.hosts import AllowedHosts
from shardd.doors.metrics.app import MetricsApplication
from shardd.doors.metrics.options import decode_options

CONNECTIONS_MAX: Final = 64
CONNECTIONS_PER_ADDRESS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8 << 10


async def serve(door: Door) -> None:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what strangers send is no line of the log
    options = decode_options(door.options)
    limits = AsgiLimits(
        connections_max=CONNECTIONS_MAX,
        connections_per_address_max=CONNECTIONS_PER_ADDRESS_MAX,
        head_bytes_max=HEAD_BYTES_MAX,
        head_timeout_s=options.server.partial_frame_timeout_ms / 1000,
        slow_reader_timeout_s=options.server.slow_reader_timeout_ms / 1000,
    )
    hosts = AllowedHosts("metrics.allowed_hosts", options.allowed_hosts, door.listeners[0])
    await serve_app(MetricsApplication(door, options), hosts, door.listeners[0], limits, door.ready)
