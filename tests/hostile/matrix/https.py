"""TLS without a look at certificates: those of the matrix are self-signed, it is not about them."""

from __future__ import annotations

import http.client
import ssl

from tests.doors.http_server import HOST, WAIT_S, HttpClient


def trusting_anything() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class SecureClient(HttpClient):
    """One connection over TLS."""

    def __init__(self, address: tuple[str, int], token: str = "", source: str = HOST) -> None:
        super().__init__(address, token, source)
        self._connection = http.client.HTTPSConnection(
            *address, timeout=WAIT_S, source_address=(source, 0), context=trusting_anything()
        )
