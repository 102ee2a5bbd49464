"""What a server must do with frames by RFC 6455, by the numbers of the cases of the Autobahn suite. Where a case has
its text echoed, an answer of the classic protocol shows that the connection lives."""

from __future__ import annotations

import struct

import pytest

from tests.conftest import MakeServer
from tests.server.websocket_server import ON, SERVER, address_of, client, pongs, send_payload, serves
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WebSocket,
    classic,
    close_frame,
    frame,
    request,
)

__all__ = ["SERVER", "client"]  # pytest looks for them in this file
NORMAL, PROTOCOL_ERROR, INVALID_TEXT, TOO_BIG = 1000, 1002, 1007, 1009


@pytest.mark.parametrize("size", [0, 125, 126, 127, 128, 65535, 65536])
def test_case_1_1_text_of_any_length_is_taken_and_says_nothing(client: WebSocket, size: int) -> None:
    client.send(frame(TEXT, b"*" * size))
    assert serves(client)


@pytest.mark.parametrize("size", [1, 2, 3, 997])
def test_case_1_2_8_binary_in_pieces_of_bytes(client: WebSocket, size: int) -> None:
    data = b"".join(frame(BINARY, classic(wire.PING)) for _ in range(20))
    for at in range(0, len(data), size):
        client.send(data[at : at + size])
    pongs(client, 20)


@pytest.mark.parametrize("payload", [b"", b"Hello", bytes(range(125)), b"\x00\xff\xfe\xfd"])
def test_case_2_1_to_2_4_a_ping_is_answered_with_what_it_holds(client: WebSocket, payload: bytes) -> None:
    client.send(frame(PING, payload))
    assert client.receive() == (PONG, payload)


def test_case_2_5_a_ping_is_short(client: WebSocket) -> None:
    client.send(frame(PING, b"x" * 126))
    assert client.closed_with() == PROTOCOL_ERROR


def test_case_2_6_a_ping_byte_by_byte(client: WebSocket) -> None:
    for byte in frame(PING, b"x" * 125):
        client.send(bytes([byte]))
    assert client.receive() == (PONG, b"x" * 125)


def test_case_2_7_to_2_9_pongs_that_nobody_asked_for(client: WebSocket) -> None:
    client.send(frame(PONG), frame(PONG, b"unasked"), frame(PING, b"asked"))
    assert client.receive() == (PONG, b"asked")


def test_case_2_10_the_last_of_many_pings_is_answered(client: WebSocket) -> None:
    client.send(*(frame(PING, str(number).encode()) for number in range(10)))
    while client.receive() != (PONG, b"9"):
        pass


@pytest.mark.parametrize("reserved", range(1, 8))
def test_case_3_reserved_bits(client: WebSocket, reserved: int) -> None:
    client.send(frame(TEXT, b"x", reserved=reserved))
    assert client.closed_with() == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
def test_case_4_reserved_opcodes(client: WebSocket, opcode: int) -> None:
    client.send(frame(TEXT, b"before"), frame(opcode), frame(PING))
    assert client.closed_with() == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
def test_case_5_1_and_5_2_control_frames_in_fragments(client: WebSocket, opcode: int) -> None:
    client.send(frame(opcode, b"", final=False), frame(CONTINUATION))
    assert client.closed_with() == PROTOCOL_ERROR


def test_case_5_3_to_5_8_fragments_with_and_without_pings_between(client: WebSocket) -> None:
    ping = classic(wire.PING)
    client.send(frame(BINARY, ping[:4], final=False), frame(CONTINUATION, ping[4:]))
    assert client.receive() == (BINARY, bytes(8))
    for byte in frame(BINARY, ping[:4], final=False) + frame(PING, b"a") + frame(CONTINUATION, ping[4:]):
        client.send(bytes([byte]))
    assert client.receive() == (PONG, b"a")
    assert client.receive() == (BINARY, bytes(8))


@pytest.mark.parametrize("final", [True, False])
def test_case_5_9_to_5_17_what_continues_nothing(client: WebSocket, final: bool) -> None:
    client.send(frame(CONTINUATION, b"x", final=final))
    assert client.closed_with() == PROTOCOL_ERROR


def test_case_5_18_a_message_begins_inside_another_one(client: WebSocket) -> None:
    client.send(frame(TEXT, b"a", final=False), frame(TEXT, b"b"))
    assert client.closed_with() == PROTOCOL_ERROR


def test_case_5_19_and_5_20_many_fragments_and_pings(client: WebSocket) -> None:
    ping = classic(wire.PING)
    client.send(frame(BINARY, ping[:1], final=False))
    for at in range(1, 7):
        client.send(frame(CONTINUATION, ping[at : at + 1], final=False), frame(PING, bytes([at])))
        assert client.receive() == (PONG, bytes([at]))
    client.send(frame(CONTINUATION, ping[7:]))
    assert client.receive() == (BINARY, bytes(8))


VALID = ["κόσμε", "\ud7ff", "\ue000", "\ufffd", "\U0010ffff", "\u0000", "߿", "ࠀ", "￿", "𐀀", "Hello-µ@ßöäüàá-UTF-8!!"]
INVALID = [
    b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf",
    b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff",
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited", b"\xe2\x82", b"\xf0\x9f\x98",
]  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_case_6_text_that_is_utf_8_cut_anywhere(client: WebSocket, text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        client.send(frame(TEXT, data[:cut], final=False), frame(CONTINUATION, data[cut:]))
    assert serves(client)


@pytest.mark.parametrize("data", INVALID)
def test_case_6_text_that_is_not(client: WebSocket, data: bytes) -> None:
    client.send(frame(TEXT, data[:1], final=False), frame(CONTINUATION, data[1:]))
    assert client.closed_with() == INVALID_TEXT


def test_case_6_4_a_bad_character_is_told_before_the_message_ends(client: WebSocket) -> None:
    client.send(frame(TEXT, b"\xce\xba\xf4\x90", final=False))
    assert client.closed_with() == INVALID_TEXT


def test_case_7_1_after_a_close_nothing_is_read(client: WebSocket) -> None:
    client.send(close_frame(NORMAL), frame(PING), frame(BINARY, classic(wire.PING)))
    assert client.closed_with() == NORMAL


def test_case_7_1_6_what_was_asked_before_the_close_is_answered(client: WebSocket) -> None:
    client.login()
    client.send(frame(BINARY, classic(wire.SEND_MESSAGES, send_payload(900_000))), close_frame(NORMAL))
    assert client.answer() == (0, b"")
    assert client.closed_with() == NORMAL


def test_case_7_3_closes_without_a_code_and_with_reasons(server: Server) -> None:
    for said, answered in [
        (close_frame(None), None),
        (frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
        (close_frame(NORMAL, b"x" * 123), NORMAL),
        (close_frame(NORMAL, "größer".encode()), NORMAL),
        (frame(CLOSE, struct.pack(">H", NORMAL) + b"x" * 124), PROTOCOL_ERROR),
    ]:
        with WebSocket(address_of(server)) as client:
            client.send(said)
            assert client.closed_with() == answered


def test_case_7_5_a_reason_that_is_no_text(client: WebSocket) -> None:
    client.send(close_frame(NORMAL, b"\xce\xba\xed\xa0\x80"))
    assert client.closed_with() == INVALID_TEXT


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
def test_case_7_7_codes_that_may_be_said(client: WebSocket, code: int) -> None:
    client.send(close_frame(code))
    assert client.closed_with() == code


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
def test_case_7_9_codes_that_may_not(client: WebSocket, code: int) -> None:
    client.send(close_frame(code))
    assert client.closed_with() == PROTOCOL_ERROR


def test_case_9_frames_and_messages_beyond_the_limits(server: Server) -> None:
    with WebSocket(address_of(server)) as client:
        client.send(frame(BINARY, bytes((1 << 20) + 1))[:14])  # its head alone
        assert client.closed_with() == TOO_BIG
    with WebSocket(address_of(server)) as client:
        client.send(frame(TEXT, b"x" * (1 << 20), final=False), frame(CONTINUATION, b"x" * (1 << 20), final=False))
        client.send(frame(PING, b"so far"))
        assert client.receive() == (PONG, b"so far")
        client.send(frame(CONTINUATION, b"x"))
        assert client.closed_with() == TOO_BIG


def test_case_10_1_fragments_by_themselves(client: WebSocket) -> None:
    text = b"*" * 65536
    pieces = [text[at : at + 1300] for at in range(0, len(text), 1300)]
    client.send(frame(TEXT, pieces[0], final=False), *(frame(CONTINUATION, each, final=False) for each in pieces[1:]))
    client.send(frame(CONTINUATION))
    assert serves(client)


def test_case_12_and_13_compression_is_declined(server: Server) -> None:
    with WebSocket(address_of(server), upgrade=False) as client:
        offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, permessage-deflate"
        client.socket.sendall(request("dGhlIHNhbXBsZSBub25jZQ==", offer))
        status, headers = client.http()
        assert status == 101 and "sec-websocket-extensions" not in headers
        assert headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        client.send(frame(BINARY, b"x", reserved=4))
        assert client.closed_with() == PROTOCOL_ERROR


def test_what_is_not_masked_is_refused_unless_that_is_allowed(server: Server, make_server: MakeServer) -> None:
    with WebSocket(address_of(server)) as client:
        client.send(frame(BINARY, classic(wire.PING), mask=None))
        assert client.closed_with() == PROTOCOL_ERROR
    other = make_server(env=ON | ONE_SHARD | {"SHARDD_WEBSOCKET_ACCEPT_UNMASKED_FRAMES": "true"})
    with WebSocket(address_of(other)) as client:
        client.send(frame(BINARY, classic(wire.PING), mask=None))
        assert client.receive() == (BINARY, bytes(8))
