"""Requests that offer another protocol (`Connection: Upgrade`, as clients of HTTP/2 do on plain connections). The
doors take up no offer, so the head of such a request, and its body, are those of any other request."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class TunnelError(Exception):
    """Raised inside the parser, which stops then: a tunnel has no body, and readers differ about what follows."""


class OffersIgnored(HttpToolsProtocol):
    """httptools ends such a request at its head: what follows would be of the other protocol. A body, taken for the
    next request, could hide one. So a new parser has a head once more that says how long the body is, and offers
    nothing: of this head nothing is told to anybody, and what is behind it belongs to the request."""

    _body_left = 0  # of the newest request, where its head tells
    _is_chunked = False
    _is_in_substitute = False

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self._feed_parser(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")

    def _feed_parser(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._begin_substitute()
                data = self._substitute() + data[offer.args[0] :]
            else:
                return

    def _begin_substitute(self) -> None:
        """A parser takes nothing behind a request that is the last one of its connection."""
        self._is_in_substitute = True
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _substitute(self) -> bytes:
        length = b"transfer-encoding: chunked" if self._is_chunked else b"content-length: %d" % self._body_left
        end = b"keep-alive" if self.cycle.keep_alive else b"close"
        return b"POST / HTTP/1.1\r\n%b\r\nconnection: %b\r\n\r\n" % (length, end)

    def on_message_begin(self) -> None:
        if not self._is_in_substitute:
            self.begin_head()

    def begin_head(self) -> None:
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The end of a substitute is always in the same feed as its begin."""
        if self._is_in_substitute:
            self._is_in_substitute = False
            return
        if self.parser.get_method() == b"CONNECT":
            raise TunnelError
        self.complete_head()

    def complete_head(self) -> None:
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
