"""A request that two readers could understand differently is refused, and what hides behind it is never executed: a
proxy in front of the door and the door agree on where each request ends, or there is no answer but an error."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import sleep

import pytest

from tests.doors.http_server import HttpServer

JSON = b"Content-Type: application/json\r\n"
BODY = b'{"name": "hidden"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("smuggling") / "data") as running:
        root = running.root()
        root.done("POST", "/streams", {"name": "s"})
        yield running
        assert [each["name"] for each in root.done("GET", "/streams")] == ["s"], "a hidden request was executed"
        assert "Traceback" not in running.log()


def exchange(server: HttpServer, *segments: bytes) -> bytes:
    """All that comes until the door closes, or stays silent for a while."""
    with server.connect() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in segments[:-1]:
            stream.sendall(data)
            sleep(0.1)  # so that it comes alone; tests/unit/test_requests_sent_ahead.py cuts anywhere
        stream.sendall(segments[-1])
        stream.settimeout(1.0)
        found = b""
        try:
            while more := stream.recv(65_536):
                found += more
        except (TimeoutError, ConnectionError):
            pass
        return found


def token_line(server: HttpServer) -> bytes:
    return f"Authorization: Bearer {server.root().token}\r\n".encode()


def hidden(server: HttpServer) -> bytes:
    """What would make a stream, if the door took it for a request."""
    head = b"POST /streams HTTP/1.1\r\nHost: localhost\r\n" + token_line(server) + JSON
    return head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


FRAMINGS = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "both, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 9\r\n",
    "a list of lengths": b"Content-Length: 4, 9\r\n",
    "a signed length": b"Content-Length: +4\r\n",
    "a negative length": b"Content-Length: -4\r\n",
    "a length in hex": b"Content-Length: 0x4\r\n",
    "a length with a blank": b"Content-Length: 4 4\r\n",
    "an endless length": b"Content-Length: 99999999999999999999999\r\n",
    "a blank before the colon": b"Content-Length : 4\r\n",
    "a blank before the colon of chunked": b"Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
    "a folded line": b"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n",
    "chunked and something behind it": b"Transfer-Encoding: chunked, identity\r\n",
    "something that looks like chunked": b"Transfer-Encoding: xchunked\r\n",
    "chunked with a vertical tab": b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 4\r\n",
    "chunked with a zero byte": b"Transfer-Encoding: chunked\x00\r\n",
    "a zero byte in a name": b"Content-Length\x00: 4\r\n",
    "a carriage return alone": b"X: y\rTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r",
    "no name": b": 4\r\nContent-Length: 4\r\n",
    "no colon": b"Content-Length 4\r\n",
}


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS.keys())
def test_a_length_that_is_ambiguous_is_refused(server: HttpServer, framing: bytes) -> None:
    head = b"POST /streams/s/topics HTTP/1.1\r\nHost: localhost\r\n" + token_line(server) + JSON
    answer = exchange(server, head + framing + b"\r\n0\r\n\r\n" + hidden(server))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1, answer
    assert b"connection: close" in answer.lower()


CHUNKS = {
    "a size in hex notation": b"0x4\r\nabcd\r\n0\r\n\r\n",
    "a negative size": b"-4\r\nabcd\r\n0\r\n\r\n",
    "a size that overflows": b"FFFFFFFFFFFFFFFFF\r\nabcd\r\n0\r\n\r\n",
    "no end of the data": b"4\r\nabcdXX0\r\n\r\n",
    "a blank in front": b" 4\r\nabcd\r\n0\r\n\r\n",
    "a line feed alone": b"4\nabcd\n0\n\n",
    "an extension with a line feed": b"4;a\nb\r\nabcd\r\n0\r\n\r\n",
    "no size": b"\r\nabcd\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
def test_a_chunk_that_is_ambiguous_is_refused(server: HttpServer, chunks: bytes) -> None:
    head = (
        b"POST /streams HTTP/1.1\r\nHost: localhost\r\n"
        + token_line(server)
        + JSON
        + b"Transfer-Encoding: chunked\r\n\r\n"
    )
    answer = exchange(server, head + chunks + hidden(server))
    assert answer.count(b"HTTP/1.1 ") <= 1 and (not answer or answer.startswith(b"HTTP/1.1 400 ")), answer


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/0.9", b"GET /", b"GET / HTTP/2.0", b"GET / HTTP/1.1 HTTP/1.1", b"GET\t/ HTTP/1.1",
        b"GET / http/1.1", b"G\x00T / HTTP/1.1", b"GET /\x00 HTTP/1.1", b"PRI * HTTP/2.0", b" GET / HTTP/1.1",
    ],
)  # fmt: skip
def test_a_line_that_is_no_request_is_refused(server: HttpServer, line: bytes) -> None:
    answer = exchange(server, line + b"\r\nHost: localhost\r\n\r\n" + hidden(server))
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400 "), answer


def test_chunks_of_a_version_without_them_are_refused(server: HttpServer) -> None:
    head = (
        b"POST /streams HTTP/1.0\r\nHost: localhost\r\n"
        + token_line(server)
        + JSON
        + b"Transfer-Encoding: chunked\r\n\r\n"
    )
    answer = exchange(server, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert answer.startswith(b"HTTP/1.1 400 "), answer


def test_trailers_are_no_headers(server: HttpServer) -> None:
    """A token behind the body is worth nothing."""
    head = b"POST /streams HTTP/1.1\r\nHost: localhost\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
    answer = exchange(server, head + chunk + token_line(server) + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_what_is_not_ambiguous_is_pipelined(server: HttpServer) -> None:
    """So that the cases above are refused for what they are."""
    head = b"POST /streams/s/topics HTTP/1.1\r\nHost: localhost\r\n" + token_line(server) + JSON
    body = b'{"name": "t%d", "partitions_count": 1}'
    first = head + b"Content-Length: %d\r\n\r\n" % len(body % 1) + body % 1
    second = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body % 2), body % 2)
    answer = exchange(server, first + second)
    assert answer.count(b"HTTP/1.1 200 ") == 2, answer


def test_a_proxy_is_not_believed(server: HttpServer) -> None:
    """Headers of proxies do not change who a client is."""
    forwarded = b"X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\nX-Real-Ip: 192.0.2.1\r\n"
    head = b"GET /clients HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + token_line(server)
    answer = exchange(server, head + forwarded + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ") and b"192.0.2.1" not in answer


def test_a_body_that_hides_a_request_is_a_body(server: HttpServer) -> None:
    inner = hidden(server)
    head = b"POST /streams HTTP/1.1\r\nHost: localhost\r\n" + token_line(server) + JSON
    answer = exchange(server, head + b"Content-Length: %d\r\n\r\n" % len(inner) + inner)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1, answer


OFFERS = {
    "HTTP/2": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "WebSocket": b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "something": b"Connection: keep-alive, Upgrade\r\nUpgrade: foo/2\r\n",
}


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("framing", ["length", "chunks", "HTTP/1.0", "last one"])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
def test_body_of_a_request_that_offers_another_protocol_is_a_body(
    server: HttpServer, offer: bytes, framing: str, segments: int
) -> None:
    """As Java's client sends it on plain connections: a body taken for the next request could hide one."""
    inner, version = hidden(server), b"HTTP/1.0" if framing == "HTTP/1.0" else b"HTTP/1.1"
    head = b"POST /streams %b\r\nHost: localhost\r\n" % version + token_line(server) + JSON + offer
    if framing == "last one":
        head = head.replace(b"Connection: ", b"Connection: close, ")
    if framing == "chunks":
        head, body = head + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
    else:
        head, body = head + b"Content-Length: %d\r\n\r\n" % len(inner), inner
    answer = exchange(server, *([head + body] if segments == 1 else [head, body]))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1, answer
    assert b"JSON is malformed" in answer, "the application has had the whole body"


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
def test_request_that_offers_another_protocol_is_answered_and_those_behind_it(server: HttpServer, offer: bytes) -> None:
    get = b"GET /streams HTTP/1.1\r\nHost: localhost\r\n" + token_line(server)
    answer = exchange(server, (get + offer + b"\r\n") * 2 + get + b"\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 3, answer


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("target", [b"localhost:80", b"/streams"])
def test_tunnel_is_refused(server: HttpServer, target: bytes, segments: int) -> None:
    inner = hidden(server)
    head = b"CONNECT %b HTTP/1.1\r\nHost: localhost\r\n" % target + token_line(server)
    head += b"Content-Length: %d\r\n\r\n" % len(inner)
    answer = exchange(server, *([head + inner] if segments == 1 else [head, inner]))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1, answer
    assert b"connection: close" in answer.lower()
