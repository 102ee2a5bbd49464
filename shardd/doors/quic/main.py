"""The process of the door for QUIC. Only the supervisor starts it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import load_pem_private_key, load_pem_x509_certificates

from shardd.doors.door import Door
from shardd.doors.handshake_counts import tell_handshakes
from shardd.doors.quic.listener import Listener
from shardd.doors.quic.options import QuicOptions, decode_options
from shardd.doors.tls import shown_material

SECTION: Final = "quic.certificate"
_log = logging.getLogger(__name__)


async def serve(door: Door) -> None:
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # what strangers send is no line of the log
    options = decode_options(door.options)
    listener = Listener(door, options, configuration_of(door, options))

    def load_again() -> None:
        try:
            listener.configuration = configuration_of(door, options)
        except (OSError, ValueError) as error:
            _log.error("the certificate stays as it was: %s", error)

    door.tls_changed = load_again
    waiting = [asyncio.create_task(link.connected.wait()) for link in door.links]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: listener, sock=door.listeners[0])
    openings = listener.openings
    telling = asyncio.create_task(
        tell_handshakes(door, "tell_handshakes_of_quic", openings.counts, lambda: openings.waiting)
    )
    door.ready()
    try:
        await listener.look()
    finally:
        telling.cancel()
        listener.close()


def configuration_of(door: Door, options: QuicOptions) -> QuicConfiguration:
    """Of new connections. No ALPN is offered or asked for; no ticket is given, so nobody comes back with 0-RTT."""
    chain, key = shown_material(door.tls_fd, SECTION).pairs[0]
    certificates = load_pem_x509_certificates(chain)
    quic = options.quic
    return QuicConfiguration(
        is_client=False,
        certificate=certificates[0],
        certificate_chain=certificates[1:],
        private_key=load_pem_private_key(key),
        idle_timeout=quic.max_idle_timeout_ms / 1000,
        max_data=quic.receive_window_bytes,
        max_stream_data=quic.receive_window_bytes,
        max_datagram_size=quic.initial_mtu_bytes,
    )
