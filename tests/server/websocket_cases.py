"""The cases of the Autobahn suite for servers (sections 1 to 7, 9 and 10) by their numbers: what a client says, and
what it has to hear. The suite itself is a program of Python 2. Its cases expect an echo; where they do, the connection
has to live on here, and binary messages are requests of the classic protocol, which are answered."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.support import wire
from tests.support.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, classic, close_frame, frame

NORMAL, PROTOCOL_ERROR, INVALID_TEXT = 1000, 1002, 1007
LIVES: Final = -1
KIB: Final = 1024
PING_BYTES_MAX: Final = 8 << 20  # of one request


class Case(NamedTuple):
    """`parts` are written one after the other, with no pause between, and `later` when the PONGs are there. `end`: the
    code of the server's CLOSE, None: a CLOSE without one, LIVES: it serves on. Before that so many answers come."""

    number: str
    parts: tuple[bytes, ...]
    end: int | None = LIVES
    pongs: tuple[bytes, ...] = ()
    answers: int = 0
    later: tuple[bytes, ...] = ()


def bytewise(*frames: bytes) -> tuple[bytes, ...]:
    return tuple(bytes([byte]) for byte in b"".join(frames))


def chopped(data: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(data[at : at + size] for at in range(0, len(data), size))


def requests(size: int) -> tuple[bytes, int]:
    """So many bytes of requests, and how many answers they have."""
    if size < 8:
        return b"", 0
    sizes = [PING_BYTES_MAX] * (size // PING_BYTES_MAX)
    rest = size % PING_BYTES_MAX
    if 0 < rest < 8:
        sizes[-1] += rest
    elif rest:
        sizes.append(rest)
    return b"".join(classic(wire.PING, bytes(each - 8)) for each in sizes), len(sizes)


def fragments(opcode: int, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """A message in so many frames."""
    last = len(pieces) - 1
    return tuple(
        frame(CONTINUATION if place else opcode, piece, final=place == last) for place, piece in enumerate(pieces)
    )


def section_1() -> Iterator[Case]:
    for number, size in enumerate((0, 125, 126, 127, 128, 65535, 65536, 65536), 1):
        binary, answers = requests(size)
        text = frame(TEXT, b"*" * size)
        pieces = 997 if number == 8 else len(text)
        yield Case(f"1.1.{number}", chopped(text, pieces))
        yield Case(f"1.2.{number}", chopped(frame(BINARY, binary), pieces), answers=answers)


def section_2() -> Iterator[Case]:
    payloads = (b"", b"Hello, world!", b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff", b"\xfe" * 125)
    for number, payload in enumerate(payloads, 1):
        yield Case(f"2.{number}", (frame(PING, payload),), pongs=(payload,))
    yield Case("2.5", (frame(PING, b"\xfe" * 126),), PROTOCOL_ERROR)
    yield Case("2.6", bytewise(frame(PING, b"\xfe" * 125)), pongs=(b"\xfe" * 125,))
    yield Case("2.7", (frame(PONG),))
    yield Case("2.8", (frame(PONG, b"unsolicited pong payload"),))
    yield Case("2.9", (frame(PONG, b"unsolicited"), frame(PING, b"ping")), pongs=(b"ping",))
    pings = tuple(frame(PING, b"payload-%d" % each) for each in range(10))
    yield Case("2.10", pings, pongs=(b"payload-9",))  # RFC 6455, 5.5.3: the last one may be answered alone
    yield Case("2.11", bytewise(*pings), pongs=(b"payload-9",))


def section_3() -> Iterator[Case]:
    hello, ping = frame(TEXT, b"Hello, world!"), frame(PING)

    def bad(opcode: int, reserved: int, payload: bytes = b"Hello, world!") -> bytes:
        return frame(opcode, payload, reserved=reserved)

    yield Case("3.1", (bad(TEXT, 1),), PROTOCOL_ERROR)
    yield Case("3.2", (hello + bad(TEXT, 2) + ping,), PROTOCOL_ERROR)
    yield Case("3.3", (hello, bad(TEXT, 3), ping), PROTOCOL_ERROR)
    yield Case("3.4", bytewise(hello, bad(TEXT, 4), ping), PROTOCOL_ERROR)
    yield Case("3.5", (bad(BINARY, 5, b"\x00\xff" * 4),), PROTOCOL_ERROR)
    yield Case("3.6", (bad(PING, 6),), PROTOCOL_ERROR)
    yield Case("3.7", (bad(CLOSE, 7, b"\x03\xe8"),), PROTOCOL_ERROR)


def section_4() -> Iterator[Case]:
    hello, ping = frame(TEXT, b"Hello, world!"), frame(PING)
    for group, first in ((1, 3), (2, 11)):
        yield Case(f"4.{group}.1", (frame(first),), PROTOCOL_ERROR)
        yield Case(f"4.{group}.2", (frame(first + 1, b"reserved opcode payload"),), PROTOCOL_ERROR)
        yield Case(f"4.{group}.3", (hello + frame(first + 2) + ping,), PROTOCOL_ERROR)
        yield Case(f"4.{group}.4", (hello, frame(first + 3, b"payload"), ping), PROTOCOL_ERROR)
        yield Case(f"4.{group}.5", bytewise(hello, frame(first + 4, b"payload"), ping), PROTOCOL_ERROR)


def section_5() -> Iterator[Case]:
    yield Case("5.1", fragments(PING, (b"fragment1", b"fragment2")), PROTOCOL_ERROR)
    yield Case("5.2", fragments(PONG, (b"fragment1", b"fragment2")), PROTOCOL_ERROR)
    first, second = fragments(TEXT, (b"fragment1", b"fragment2"))
    ping = frame(PING, b"ping payload")
    yield Case("5.3", (first + second,))
    yield Case("5.4", (first, second))
    yield Case("5.5", bytewise(first, second))
    yield Case("5.6", (first + ping + second,), pongs=(b"ping payload",))
    yield Case("5.7", (first, ping, second), pongs=(b"ping payload",))
    yield Case("5.8", bytewise(first, ping, second), pongs=(b"ping payload",))
    for number, final in ((9, True), (12, False)):
        both = (frame(CONTINUATION, b"non-continuation payload", final=final), frame(TEXT, b"Hello, world!"))
        yield Case(f"5.{number}", (b"".join(both),), PROTOCOL_ERROR)
        yield Case(f"5.{number + 1}", both, PROTOCOL_ERROR)
        yield Case(f"5.{number + 2}", bytewise(*both), PROTOCOL_ERROR)
    nothing_to_continue = frame(CONTINUATION, b"fragment3", final=False)
    yield Case("5.15", (first + second + nothing_to_continue + frame(TEXT, b"fragment4"),), PROTOCOL_ERROR)
    for number, final in ((16, False), (17, True)):
        yield Case(f"5.{number}", (frame(CONTINUATION, b"fragment1", final=final), first, second) * 2, PROTOCOL_ERROR)
    yield Case("5.18", (first + frame(TEXT, b"fragment2"),), PROTOCOL_ERROR)
    five = fragments(TEXT, tuple(b"fragment%d" % each for each in range(1, 6)))
    pings = (b"pongme 1!", b"pongme 2!")
    mixed = (*five[:2], frame(PING, pings[0]), *five[2:4], frame(PING, pings[1]), five[4])
    yield Case("5.19", (b"".join(mixed),), pongs=pings[1:])
    yield Case("5.20", mixed, pongs=pings[1:])


KOSME: Final = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"
LONG_TEXT: Final = "Hello-µ@ßöäüàá-UTF-8!!".encode()
INCOMPLETE: Final = tuple(
    bytes.fromhex(each)
    for each in ("c0", "e080", "f08080", "f8808080", "fc80808080", "df", "efbf", "f7bfbf", "fbbfbfbf", "fdbfbfbfbf")
)
STARTS: Final = ((0xC0, 0xDF), (0xE0, 0xEF), (0xF0, 0xF7), (0xF8, 0xFB), (0xFC, 0xFD))
BEYOND_THE_PLANES: Final = [  # the last two of each plane, which are no characters
    (plane << 16 | 0xFFFE | last) for plane in range(1, 17) for last in range(2)
]
TEXTS: Final[dict[int, tuple[bytes, ...]]] = {  # 6.5 and on: each whether UTF-8 or not, as a message of one frame
    5: (b"hello$world", "hello¢world".encode(), "hello€world".encode(), b"hello\xf0\xa4\xad\xa2world", KOSME),
    6: tuple(KOSME[:end] for end in range(1, len(KOSME) + 1)),
    7: (b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80"),
    8: (b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80"),
    9: (b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf"),
    10: (b"\xf7\xbf\xbf\xbf", b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf"),
    11: (b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbd", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80"),
    12: (b"\x80", b"\xbf", *((b"\x80\xbf" * 3)[:end] for end in range(2, 7)), bytes(range(0x80, 0xBF))),
    13: tuple(b"".join(bytes([each]) + b" " for each in range(*ends)) for ends in STARTS),
    14: INCOMPLETE,
    15: (b"".join(INCOMPLETE),),
    16: (b"\xfe", b"\xff", b"\xfe\xfe\xff\xff"),
    17: (b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xf8\x80\x80\x80\xaf", b"\xfc\x80\x80\x80\x80\xaf"),
    18: (b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xf8\x87\xbf\xbf\xbf", b"\xfc\x83\xbf\xbf\xbf\xbf"),
    19: (b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf8\x80\x80\x80\x80", b"\xfc\x80\x80\x80\x80\x80"),
    20: tuple(bytes.fromhex(each) for each in ["eda080", "edadbf", "edae80", "edafbf", "edb080", "edbe80", "edbfbf"]),
    21: tuple(
        bytes.fromhex(high + low) for high in ["eda080", "edadbf", "edae80", "edafbf"] for low in ("edb080", "edbfbf")
    ),
    22: (b"\xef\xbf\xbe", b"\xef\xbf\xbf", *(chr(each).encode() for each in BEYOND_THE_PLANES)),
    23: tuple(chr(each).encode() for each in range(0xFFF9, 0x10000)),
}


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def section_6() -> Iterator[Case]:
    yield Case("6.1.1", (frame(TEXT),))
    yield Case("6.1.2", fragments(TEXT, (b"", b"", b"")))
    yield Case("6.1.3", fragments(TEXT, (b"", b"middle frame payload", b"")))
    yield Case("6.2.1", (frame(TEXT, LONG_TEXT),))
    yield Case("6.2.2", fragments(TEXT, ("Hello-µ@ßöä".encode(), "üàá-UTF-8!!".encode())))
    yield Case("6.2.3", fragments(TEXT, bytewise(LONG_TEXT)))
    yield Case("6.2.4", fragments(TEXT, bytewise(KOSME)))
    surrogate = KOSME + b"\xed\xa0\x80edited"
    yield Case("6.3.1", (frame(TEXT, surrogate),), INVALID_TEXT)
    yield Case("6.3.2", fragments(TEXT, bytewise(surrogate)), INVALID_TEXT)
    beyond = KOSME + b"\xf4\x90\x80\x80edited"  # told before the end of the message, and of its frame
    for number, end in ((1, len(KOSME) + 4), (2, len(KOSME) + 2)):
        start = len(KOSME) if number == 1 else len(KOSME) + 1
        parts = fragments(TEXT, (beyond[:start], beyond[start:end], beyond[end:]))
        ping = frame(PING, b"so far")
        yield Case(f"6.4.{number}", (parts[0], ping), INVALID_TEXT, pongs=(b"so far",), later=parts[1:2])
        whole = frame(TEXT, beyond)
        head = len(whole) - len(beyond)
        yield Case(f"6.4.{number + 2}", (whole[: head + start], whole[head + start : head + end]), INVALID_TEXT)
    for section, texts in TEXTS.items():
        for number, data in enumerate(texts, 1):
            yield Case(f"6.{section}.{number}", (frame(TEXT, data),), LIVES if is_text(data) else INVALID_TEXT)


def section_7() -> Iterator[Case]:
    hello, close = frame(TEXT, b"Hello World!"), close_frame(NORMAL)
    yield Case("7.1.1", (hello, close), NORMAL)
    yield Case("7.1.2", (close, close), NORMAL)
    yield Case("7.1.3", (close, frame(PING)), NORMAL)
    yield Case("7.1.4", (close, hello), NORMAL)
    first, second = fragments(TEXT, (b"fragment1", b"fragment2"))
    yield Case("7.1.5", (first, close, second), NORMAL)
    yield Case("7.1.6", (frame(TEXT, b"BAsd7&jh23" * 26_214), hello, close, frame(PING)), NORMAL)
    yield Case("7.3.1", (close_frame(None),), None)
    yield Case("7.3.2", (frame(CLOSE, b"a"),), PROTOCOL_ERROR)
    yield Case("7.3.3", (close,), NORMAL)
    yield Case("7.3.4", (close_frame(NORMAL, b"Hello World!"),), NORMAL)
    yield Case("7.3.5", (close_frame(NORMAL, b"*" * 123),), NORMAL)
    yield Case("7.3.6", (frame(CLOSE, struct.pack(">H", NORMAL) + b"*" * 124),), PROTOCOL_ERROR)
    yield Case("7.5.1", (close_frame(NORMAL, KOSME + b"\xed\xa0\x80edited"),), INVALID_TEXT)
    for number, code in enumerate((*range(1000, 1004), *range(1007, 1012), 3000, 3999, 4000, 4999), 1):
        yield Case(f"7.7.{number}", (close_frame(code),), code)
    for number, code in enumerate((0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999), 1):
        yield Case(f"7.9.{number}", (close_frame(code),), PROTOCOL_ERROR)
    for number, code in enumerate((5000, 65535), 1):
        yield Case(f"7.13.{number}", (close_frame(code),), PROTOCOL_ERROR)


_TEXT: Final = b"BAsd7&jh" * (2 << 20)


def large_text() -> Iterator[Case]:
    for number, size in enumerate(_WHOLE_KIB, 1):
        yield Case(f"9.1.{number}", (frame(TEXT, _TEXT[: size * KIB]),))


def large_binary() -> Iterator[Case]:
    for number, size in enumerate(_WHOLE_KIB, 1):
        binary, answers = requests(size * KIB)
        yield Case(f"9.2.{number}", (frame(BINARY, binary),), answers=answers)


def text_in_fragments() -> Iterator[Case]:
    for number in range(9):
        yield Case(f"9.3.{number + 1}", fragments(TEXT, chopped(_TEXT[: 4096 * KIB], 64 << 2 * number)))


def binary_in_fragments() -> Iterator[Case]:
    binary, answers = requests(4096 * KIB)
    for number in range(9):
        yield Case(f"9.4.{number + 1}", fragments(BINARY, chopped(binary, 64 << 2 * number)), answers=answers)


def text_in_chops() -> Iterator[Case]:
    for number in range(6):
        yield Case(f"9.5.{number + 1}", chopped(frame(TEXT, _TEXT[: 1024 * KIB]), 64 << number))


def binary_in_chops() -> Iterator[Case]:
    binary, answers = requests(1024 * KIB)
    for number in range(6):
        yield Case(f"9.6.{number + 1}", chopped(frame(BINARY, binary), 64 << number), answers=answers)


def many_texts() -> Iterator[Case]:
    for number, size in enumerate(_REPEATED, 1):
        yield Case(f"9.7.{number}", (frame(TEXT, _TEXT[:size]),) * 1000)


def many_binaries() -> Iterator[Case]:
    for number, size in enumerate(_REPEATED, 1):
        binary, answers = requests(size)
        yield Case(f"9.8.{number}", (frame(BINARY, binary),) * 1000, answers=1000 * answers)


_WHOLE_KIB: Final = (64, 256, 1024, 4096, 8192, 16384)
_REPEATED: Final = (0, 16, 64, 256, 1024, 4096)
LARGE: Final = {  # section 9: made when they are needed, as masking them takes seconds
    "9.1": large_text,
    "9.2": large_binary,
    "9.3": text_in_fragments,
    "9.4": binary_in_fragments,
    "9.5": text_in_chops,
    "9.6": binary_in_chops,
    "9.7": many_texts,
    "9.8": many_binaries,
}


def section_10() -> Iterator[Case]:
    yield Case("10.1.1", fragments(TEXT, chopped(b"*" * 65536, 1300)))


def cases() -> Iterator[Case]:
    """All but those of section 9."""
    for section in (section_1, section_2, section_3, section_4, section_5, section_6, section_7, section_10):
        yield from section()
