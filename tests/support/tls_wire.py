"""The wire client over TLS, by the ssl module of Python."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.support import wire


def client_context(authority: Path, certificate: Path | None = None) -> ssl.SSLContext:
    """Trusts the authority alone; `certificate`: what it shows, with NAME.key beside it."""
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


class TlsWire(wire.Wire):
    def __init__(
        self,
        address: str,
        context: ssl.SSLContext,
        name: str = "localhost",
        *,
        timeout_s: float = 60.0,
        session: ssl.SSLSession | None = None,
    ) -> None:
        super().__init__(address, timeout_s=timeout_s)
        try:
            self.socket = self.tls = context.wrap_socket(self.socket, server_hostname=name, session=session)
        except OSError:
            self.socket.close()
            raise
