"""The recorded exchange of the released client 0.9, answered by a server: every example byte by byte. Sessions, times,
checksums over times and the places of commits differ from server to server; what else differs is named here."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.iggy09 import CLIENT_ID, Connection, bytes_of
from tests.support.server import Server

IDS: Final = {"CID1": CLIENT_ID.hex(), "CID2": "efe0f3341ce0417d989e061b1f9b7f23"}
SESSION: Final = slice(184, 192)
COMMITS: Final = slice(176, 192)  # of an answer: where it stands in the log of the recorded server
TIMES: Final = {  # in the body: u64 that begin there
    2: (8,),  # the session
    5: (8,),
    6: (4,),
    13: (32, 56),  # and the checksum of a batch, which covers it
    20: (0,),  # the generation
    21: (32, 56),
}
TOPIC_TIMES: Final = {9: (8, 72, 112), 10: (4, 68, 108), 11: (8,)}  # without options
OPTIONS: Final = bytes.fromhex("4c000000") + b"".join(
    b"\x02" + struct.pack("<I", len(text)) + text
    for text in (b"consumer_offset_durability", b"replicated", b"durability", b"replicated")
)


class Frame(msgspec.Struct):
    head: bytes
    body: bytes = b""


class Example(msgspec.Struct):
    name: str
    request: Frame
    answer: Frame

    @property
    def number(self) -> int:
        return int(self.name.partition(".")[0])


def _head(line: str) -> bytes:
    head = bytearray(256)
    for field in line.split()[2:]:
        place, _, value = field.partition("=")
        data = bytes.fromhex(IDS.get(value, value.removesuffix("..")))
        at = int(place.partition("@")[2])
        head[at : at + len(data)] = data
    return bytes(head)


@functools.cache
def examples() -> tuple[Example, ...]:
    found: list[Example] = []
    for block in (Path(__file__).parent / "data" / "iggy-0.9.0.txt").read_text().split("\n[")[1:]:
        name, *lines = block.strip().split("\n")
        frames: list[Frame] = []
        for line in lines:
            if line.startswith("B "):
                _, size, text = line.split(" ", 2)
                same = text.startswith("same as")
                frames[-1].body = found[int(text.split()[-1]) - 1].answer.body if same else bytes_of(text)
                assert f"({len(frames[-1].body)})" == size, name
            else:
                frames.append(Frame(_head(line)))
        found.append(Example(name.removesuffix("]"), *frames))
    return tuple(found)


def replay(address: str) -> list[Frame]:
    """The answers. A request names the session of its login."""
    answers = []
    with Connection(address, CLIENT_ID) as connection:
        session = bytes(8)
        for example in examples():
            head = bytearray(example.request.head)
            if any(head[SESSION]):
                head[SESSION] = session
            connection.send(bytes(head) + example.request.body)
            answers.append(Frame(*connection.receive_frame()))
            if example.number == 2:
                session = answers[-1].body[8:16]
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Frame], int]]:
    """And the port of the server."""
    with Server(tmp_path_factory.mktemp("examples")) as server:
        yield replay(server.address), int(server.address.rpartition(":")[2])


def expected_body(example: Example, port: int) -> bytes:
    """What is answered here."""
    body = example.answer.body
    match example.number:
        case 3:
            return body[:45] + struct.pack("<H", port) + body[47:]
        case 9 | 10 | 11:  # the options of a topic are not kept
            return body.replace(OPTIONS, bytes(4))
        case 12:  # "no offsets reported"
            return b""
        case _:
            return body


def masked(data: bytes, places: tuple[int, ...]) -> bytes:
    out = bytearray(data)
    for at in places:
        assert any(out[at : at + 8]), "nothing is there"
        out[at : at + 8] = bytes(8)
    return bytes(out)


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_is_answered_as_recorded(example: Example, answers: tuple[list[Frame], int]) -> None:
    answer = answers[0][example.number - 1]
    body = expected_body(example, answers[1])
    if example.number in (25, 26):  # the example has one option; what a machine has is its own
        body = answer.body
    places = TIMES.get(example.number, ()) + TOPIC_TIMES.get(example.number, ())
    assert masked(answer.body, places) == masked(body, places)
    head, recorded = bytearray(answer.head), bytearray(example.answer.head)
    struct.pack_into("<I", recorded, 48, 256 + len(body))
    head[COMMITS] = recorded[COMMITS] = bytes(16)
    assert head == recorded


def test_options_are_described_in_the_recorded_form(answers: tuple[list[Frame], int]) -> None:
    """The recorded one has no effect here, so others are told."""
    ((key, kind, default, _),) = _options(examples()[24].answer.body)
    described = _options(answers[0][24].body)
    assert key == "segment_size" and key not in [each[0] for each in described]
    assert {len(each[2]) for each in described if each[1] == kind} == {len(default)}


def _options(body: bytes) -> list[tuple[str, int, bytes, str]]:
    found, at = [], 4
    for _ in range(struct.unpack_from("<I", body)[0]):
        key = body[at + 1 : at + 1 + body[at]].decode()
        at += 1 + body[at]
        kind, size = struct.unpack_from("<BI", body, at)
        default = body[at + 5 : at + 5 + size]
        at += 5 + size
        (size,) = struct.unpack_from("<I", body, at)
        found.append((key, kind, default, body[at + 4 : at + 4 + size].decode()))
        at += 4 + size
    assert at == len(body)
    return found


def test_the_version_in_the_statistics_is_the_recorded_one(answers: tuple[list[Frame], int]) -> None:
    version = bytes_of("05000000 302e392e30 00240000")
    assert version in examples()[25].answer.body and version in answers[0][25].body


def test_a_refused_version_is_told_in_the_recorded_form(answers: tuple[list[Frame], int]) -> None:
    """But for the window, which is another one there."""
    recorded = bytearray(256)
    for at, text in (
        (48, "00010000 00000000 00000000 0d000000"),
        (144, "01300000 00300000"),
        (240, "[12] 0000000e"),
    ):
        recorded[at : at + len(bytes_of(text))] = bytes_of(text)
    recorded[128:144] = CLIENT_ID
    struct.pack_into("<II", recorded, 144, 11264, 11264)
    with Connection(f"127.0.0.1:{answers[1]}", CLIENT_ID) as connection:
        assert connection.login(version=11265).head == recorded
