"""The TCP address of a server: held by one supervisor, listened on by one socket for each shard.

SO_REUSEPORT lets the kernel deal connections to the shards, but it would also let a second server share the port
without a word. So the address is locked (address_lock.py), and a server that answers a PING there stops the start. A
foreign socket that only holds the port (test harnesses do that) answers nothing and does not.
"""

from __future__ import annotations

import ipaddress
import selectors
import socket
import struct
import time
from typing import Final

from shardd.config.schema import Socket, Tcp
from shardd.config.units import format_address
from shardd.server.errors import StartupError

_PING: Final = bytes.fromhex("0400000001000000")  # length 4, code 1 (docs/protocol/framing.md#request)
_PONG: Final = bytes(8)  # status 0, length 0
_PROBES: Final = 5  # the kernel deals them over all sockets of the port, answering or not
_PROBE_TIMEOUT_S: Final = 0.2
_BACKLOG: Final = 4096


def server_answers(host: str, port: int) -> bool:
    """True when something at the address answers a PING within 200 ms."""
    wildcard = ipaddress.ip_address(host).is_unspecified
    target = ("::1" if ":" in host else "127.0.0.1") if wildcard else host
    deadline = time.monotonic() + _PROBE_TIMEOUT_S
    probes: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        try:
            for _ in range(_PROBES):
                probe = socket.socket(_family(host), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                probes.append(probe)
                probe.setblocking(False)
                probe.connect_ex((target, port))
                selector.register(probe, selectors.EVENT_WRITE)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    probe = key.fileobj  # type: ignore[assignment]
                    try:
                        if key.events == selectors.EVENT_WRITE:
                            probe.send(_PING)
                            selector.modify(probe, selectors.EVENT_READ)
                        elif probe.recv(len(_PONG)) == _PONG:
                            return True
                        else:
                            selector.unregister(probe)
                    except OSError:
                        selector.unregister(probe)
        finally:
            for probe in probes:
                probe.close()
    return False


def open_listeners(tcp: Tcp, shards: int) -> tuple[list[socket.socket], str]:
    """One listening socket per shard (blocking, as the ring wants them) and the actual address. Raises StartupError."""
    listeners: list[socket.socket] = []
    port = tcp.port
    try:
        for _ in range(shards):
            listener = socket.socket(_family(tcp.host), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _set_options(listener, tcp.socket)
            listener.bind((tcp.host, port))
            port = listener.getsockname()[1]
        for listener in listeners:  # only when all are bound: no connection waits at a server that cannot start
            listener.listen(_BACKLOG)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise StartupError(f"cannot listen on {tcp.address}: {error.strerror}") from error
    return listeners, format_address(tcp.host, port)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _set_options(listener: socket.socket, options: Socket) -> None:
    """Accepted sockets inherit all of these. Without `override_defaults` only the delay of small answers is off."""
    nodelay = options.nodelay or not options.override_defaults
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(nodelay))
    if not options.override_defaults:
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.recv_buffer_size_bytes)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_size_bytes)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(options.keepalive))
    if options.linger_ms:
        linger_s = max(1, round(options.linger_ms / 1000))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger_s))
