"""The protocol of NATS as a server reads it: whole lines and payloads, whatever pieces they come in, and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shardd.protocol import nats
from shardd.protocol.nats import Connect, NatsError, Ping, Pong, Pub, Request, Requests, Sub, Unsub

PAYLOAD_MAX = 64


def taken(*pieces: bytes) -> list[Request]:
    requests, found = Requests(PAYLOAD_MAX), list[Request]()
    for piece in pieces:
        requests.feed(piece)
        while (request := requests.take()) is not None:
            found.append(request)
    return found


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"PING\r\n", [Ping()]),
        (b"ping\n", [Ping()]),
        (b"PONG\r\n", [Pong()]),
        (b"PUB a.b 5\r\nhello\r\n", [Pub("a.b", "", b"hello")]),
        (b"pub\ta.b\t 0\r\n\r\n", [Pub("a.b", "", b"")]),
        (b"PUB a.b _INBOX.1 2\r\n\r\n\r\n", [Pub("a.b", "_INBOX.1", b"\r\n")]),
        (b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", [Pub("a", "", b"hi", b"NATS/1.0\r\n\r\n")]),
        (b"HPUB a r 12 12\r\nNATS/1.0\r\n\r\n\r\n", [Pub("a", "r", b"", b"NATS/1.0\r\n\r\n")]),
        (b"SUB a.* 1\r\n", [Sub("a.*", "", "1")]),
        (b"SUB > group sid9\r\n", [Sub(">", "group", "sid9")]),
        (b"UNSUB 1\r\nUNSUB 1 5\r\n", [Unsub("1", 0), Unsub("1", 5)]),
        (b"CONNECT {}\r\n", [Connect()]),
        (
            b'CONNECT {"verbose":true,"echo":false,"user":"u","pass":"p","lang":"x","version":"1"}\r\n',
            [Connect(verbose=True, echo=False, user="u", password="p")],
        ),
        (b'CONNECT {"auth_token":"t"}\r\nPING\r\n', [Connect(auth_token="t"), Ping()]),
        (b"PUB b\xc3\xa4.* 1\r\nx\r\n", [Pub("bä.*", "", b"x")]),
        (b"PUB a %d\r\n%b\r\n" % (PAYLOAD_MAX, b"x" * PAYLOAD_MAX), [Pub("a", "", b"x" * PAYLOAD_MAX)]),
    ],
)
def test_requests_are_read_in_any_pieces(data: bytes, wanted: list[Request]) -> None:
    assert taken(data) == wanted
    assert taken(*(bytes([byte]) for byte in data)) == wanted
    for cut in range(len(data)):
        assert taken(data[:cut], data[cut:]) == wanted


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\r\n", "Unknown Protocol Operation"),
        (b"GET / HTTP/1.1\r\n", "Unknown Protocol Operation"),
        (b"MSG a 1 1\r\nx\r\n", "Unknown Protocol Operation"),
        (b"INFO {}\r\n", "Unknown Protocol Operation"),
        (b"PUB\r\n", "Parser Error"),
        (b"PUB a\r\n", "Parser Error"),
        (b"PUB a b c 1\r\n", "Parser Error"),
        (b"PUB a -1\r\n", "Parser Error"),
        (b"PUB a +1\r\n", "Parser Error"),
        (b"PUB a 1_0\r\n", "Parser Error"),
        (b"PUB a \xb2\r\n", "Parser Error"),
        (b"PUB a 0000000001\r\n", "Parser Error"),
        (b"PUB a 65\r\n", "Maximum Payload Violation"),
        (b"PUB a 999999999\r\n", "Maximum Payload Violation"),
        (b"PUB a 1\r\nxy\r\n", "Parser Error"),
        (b"PUB a 1\r\nx\n\r\n", "Parser Error"),
        (b"HPUB a 5 4\r\n", "Parser Error"),
        (b"HPUB a 4\r\n", "Parser Error"),
        (b"HPUB a 60 65\r\n", "Maximum Payload Violation"),
        (b"PUB a\xff 1\r\nx\r\n", "Invalid Subject"),
        (b"PUB a\x01 1\r\nx\r\n", "Invalid Subject"),
        (b"PUB %b 1\r\nx\r\n" % (b"a" * 1_025), "Invalid Subject"),
        (b"SUB a\r\n", "Parser Error"),
        (b"SUB a b c d\r\n", "Parser Error"),
        (b"SUB a %b\r\n" % (b"1" * 65), "Parser Error"),
        (b"SUB a %b 1\r\n" % (b"q" * 256), "Parser Error"),
        (b"UNSUB\r\n", "Parser Error"),
        (b"UNSUB 1 x\r\n", "Parser Error"),
        (b"CONNECT\r\n", "Invalid CONNECT"),
        (b"CONNECT []\r\n", "Invalid CONNECT"),
        (b'CONNECT {"user":5}\r\n', "Invalid CONNECT"),
        (b'CONNECT {"user":"\xff"}\r\n', "Invalid CONNECT"),
        (b"CONNECT " + b"[" * 4_000 + b"\r\n", "Invalid CONNECT"),
        (b"x" * 4_097, "Maximum Control Line Exceeded"),
        (b"x" * 4_097 + b"\r\n", "Maximum Control Line Exceeded"),
    ],
)
def test_what_breaks_the_protocol_is_said(data: bytes, text: str) -> None:
    with pytest.raises(NatsError) as caught:
        taken(data)
    assert str(caught.value) == text
    with pytest.raises(NatsError):
        taken(*(bytes([byte]) for byte in data))


def test_a_half_sent_line_is_looked_through_once_and_bounded() -> None:
    requests = Requests(PAYLOAD_MAX)
    for _ in range(nats.CONTROL_LINE_BYTES_MAX):
        requests.feed(b"x")
        assert requests.take() is None
    requests.feed(b"x")
    with pytest.raises(NatsError):
        requests.take()


def test_what_was_taken_is_not_kept() -> None:
    requests = Requests(1 << 20)
    for _ in range(1_000):
        requests.feed(b"PUB a 1000\r\n" + b"x" * 1_000 + b"\r\n")
        assert requests.take() is not None
        assert requests.waiting_bytes == 0 and len(requests._data) <= 2_048


def test_the_password_is_not_in_what_is_printed() -> None:
    assert "secret" not in repr(Connect(user="u", password="secret", auth_token="secret"))


@pytest.mark.parametrize(
    ("subject", "is_good"),
    [
        ("a", True),
        ("a.*.b.>", True),
        (">", True),
        ("a.", False),
        ("", False),
        ("a..b", False),
        (">.a", False),
        (".".join("*" * 16), True),
        (".".join("*" * 17), False),
        (".".join("a" * 100), True),
    ],
)
def test_subjects_of_subscriptions_cost_little(subject: str, is_good: bool) -> None:
    assert nats.is_subscribable(subject) is is_good


@given(some.lists(some.binary(max_size=40), max_size=8), some.binary(max_size=8))
def test_any_bytes_are_requests_or_one_error(pieces: list[bytes], between: bytes) -> None:
    words = [b"PUB a 3\r\nabc\r\n", b"SUB a 1\r\n", b"CONNECT {}\r\n", between]
    try:
        taken(*(part for piece in pieces for part in (piece, words[len(piece) % 4])))
    except NatsError as error:
        assert str(error)


@given(some.binary(max_size=64), some.sampled_from(["", "reply"]))
def test_what_a_server_sends_can_be_read(payload: bytes, reply: str) -> None:
    line, _, rest = nats.encode_msg("a.b", "7", reply, payload).partition(b"\r\n")
    words = line.decode().split(" ")
    assert words == ["MSG", "a.b", "7", *([reply] if reply else []), str(len(payload))]
    assert rest == payload + b"\r\n"
