"""Ways to a server: TCP, TLS, a Unix socket. What goes over them is the same."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from shardd.client.errors import SettingsError, TlsError
from shardd.client.settings import Settings, parse

P = TypeVar("P", bound=asyncio.Protocol)
_EYEBALLS_S: Final = 0.25  # RFC 8305: before the next address of a name is tried beside the first
_SENTENCES: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of this client",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "both sides cannot agree, or it wants a certificate of this client",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust who signed the certificate of this client",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this client has expired",
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS",
}


def tls_context(settings: Settings) -> ssl.SSLContext:
    """What is trusted, and what is shown. TlsError."""
    file = settings.ca_file
    try:
        context = ssl.create_default_context(cafile=file or None)
        file = settings.certificate_file
        if file:
            context.load_cert_chain(file, settings.key_file or None)
    except ssl.SSLError as error:
        raise TlsError(f"{file}: no certificate, or no key that fits it ({error.reason or 'unreadable'})") from None
    except OSError as error:
        raise TlsError(f"{error.filename or file}: {error.strerror}") from None
    return context


def tls_failure(settings: Settings, error: BaseException | None) -> TlsError | None:
    """The sentence for what ended a connection, if that was TLS: another attempt would end like it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"{settings.address}: its certificate is not trusted: {error.verify_message.rstrip('.')}")
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        sentence = _SENTENCES.get(error.reason, error.reason.replace("_", " ").lower())
        return TlsError(f"{settings.address}: {sentence}")
    return None


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """The kernel finds out that the other host is gone, also while nothing is asked."""
    made = transport.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_refused(error: OSError) -> bool:
    """By every address of the name."""
    numbers = re.findall(r"\[Errno (-?\d+)\]", str(error))
    refusals = {str(errno.ECONNREFUSED), str(errno.ENOENT)}
    return bool(numbers) and set(numbers) <= refusals


async def open_transport(settings: Settings, protocol: Callable[[], P]) -> P:
    """Connected. OSError, TlsError."""
    loop = asyncio.get_running_loop()
    if settings.unix_path:
        return (await loop.create_unix_connection(protocol, settings.unix_path))[1]
    if not settings.tls:
        transport, made = await loop.create_connection(
            protocol, settings.host, settings.port, happy_eyeballs_delay=_EYEBALLS_S
        )
        keep_alive(transport)
        return made
    context, name = tls_context(settings), settings.server_name or settings.host
    try:
        transport, made = await loop.create_connection(
            protocol,
            settings.host,
            settings.port,
            ssl=context,
            server_hostname=name,
            happy_eyeballs_delay=_EYEBALLS_S,
        )
        keep_alive(transport)
        return made
    except ssl.SSLError as error:
        raise tls_failure(settings, error) or error from None


def way_to(address: str, username: str = "", password: str = "", token: str = "") -> Settings:
    """Of "host:port", "unix:/path" or a connection string that does not say who asks. SettingsError."""
    path = address.removeprefix("unix:")
    shown = address.rpartition("@")[2]  # without a password
    try:
        found = parse(address) if path == address else Settings(unix_path=path)
    except SettingsError as error:
        raise SettingsError(str(error) if shown in str(error) else f"{shown}: {error}") from None
    if found.username or found.token:
        raise SettingsError(f"{shown}: user and password have options of their own; leave them out of the address")
    return replace(found, username=username, password=password, token=token)


def connect(settings: Settings, timeout_s: float) -> socket.socket:
    """A blocking socket. OSError, TlsError."""
    if settings.unix_path:
        made = socket.socket(socket.AF_UNIX)
    else:
        made = socket.create_connection((settings.host, settings.port), timeout_s)
    try:
        if settings.unix_path:
            made.settimeout(timeout_s)
            made.connect(settings.unix_path)
            return made
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not settings.tls:
            return made
        return tls_context(settings).wrap_socket(made, server_hostname=settings.server_name or settings.host)
    except BaseException as error:
        made.close()
        raise tls_failure(settings, error) or error from None
