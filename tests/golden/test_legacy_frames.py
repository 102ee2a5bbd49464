"""The recorded frames of earlier clients: each request is understood, each answer is made byte by byte; and a server
answers the recorded sessions alike."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

import msgspec
import pytest

from shardd.protocol.account_replies import LoggedIn, UserDetails
from shardd.protocol.codes import Code
from shardd.protocol.legacy import generations, replies
from shardd.protocol.legacy.generations import Generation, code_of, generation_of, generation_of_login
from shardd.protocol.legacy.requests import decode
from shardd.protocol.replies import (
    ConsumerOffset,
    GroupDetails,
    GroupMemberSummary,
    GroupSummary,
    PartitionSummary,
    StreamSummary,
    TopicSummary,
)
from shardd.protocol.system_replies import ClientSummary
from tests.support.server import Server

NOW = bytes.fromhex("00401e18240a0600")
TIME_US = struct.unpack("<Q", NOW)[0]


class Exchange(msgspec.Struct):
    """`answer`: empty when none was recorded."""

    section: str
    note: str
    request: bytes
    answer: bytes = b""

    @property
    def code(self) -> int:
        return int(struct.unpack_from("<I", self.request, 4)[0])

    @property
    def payload(self) -> bytes:
        return self.request[8:]


def load() -> list[Exchange]:
    found: list[Exchange] = []
    section = note = ""
    for line in (Path(__file__).parent / "data" / "legacy-frames.txt").read_text().splitlines():
        if line.startswith("["):
            section = line[1:-1]
        elif line.startswith("> "):
            found.append(Exchange(section, note, bytes.fromhex(line[2:])))
        elif line.startswith("< "):
            found[-1].answer = bytes.fromhex(line[2:])
        elif not line.startswith("#"):
            note = line
    return found


EXCHANGES = load()
SECTIONS = sorted({each.section for each in EXCHANGES})


def generation_in(section: str) -> Generation:
    """The one that the crate of a section belongs to."""
    crates = re.findall(r"crate (\d+)\.(\d+)\.(\d+)", section)
    major, minor, patch = (
        map(int, crates[0])
        if crates
        else {"PyPI 0.1.0": (0, 1, 0), "PyPI 0.2.0": (0, 4, 2)}[section.partition(" (")[0]]
    )
    found = generation_of((major, minor, patch))
    assert found is not None
    return found


def exchanges(section: str) -> list[Exchange]:
    return [each for each in EXCHANGES if each.section.startswith(section)]


def test_there_are_59_requests() -> None:
    assert len(EXCHANGES) == 59 and len(SECTIONS) == 10


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: f"{each.section}-{each.request[4:16].hex()}")
def test_every_request_is_understood(each: Exchange) -> None:
    """Completely: with a byte less it is another request, or none."""
    assert len(each.request) == 4 + struct.unpack_from("<I", each.request)[0]
    generation = generation_in(each.section)
    code = code_of(each.code, each.payload, generation)
    request, proved = decode(code, each.payload, generation)
    assert proved.last <= generation.last
    if each.payload and code not in (Code.LOGIN_USER,):
        try:
            assert decode(code, each.payload[:-1], generation)[0] != request
        except Exception as error:
            assert type(error).__name__ == "ShardError"


@pytest.mark.parametrize("section", [each for each in SECTIONS if each.startswith("PyPI")])
def test_a_login_tells_the_generation(section: str) -> None:
    for each in exchanges(section):
        found = generation_of_login(each.code, each.payload)
        wanted = generation_in(section)
        if wanted.number < generations.UNVERSIONED.number:
            wanted = generations.UNVERSIONED  # no version: the topic that it creates tells
        assert found == (wanted if each.code == Code.LOGIN_USER else None)


def test_a_topic_tells_what_a_login_without_version_left_open() -> None:
    told = {}
    for section in ("PyPI 0.1.0", "PyPI 0.2.0", "crate 0.2.17", "crate 0.0.53"):
        for each in exchanges(section):
            if each.code == Code.CREATE_TOPIC:
                told[section] = decode(each.code, each.payload, generations.UNVERSIONED)[1].name
    assert told == {
        "PyPI 0.1.0": "0.0.90 to 0.1.7",
        "PyPI 0.2.0": "0.2.18 to 0.4.4",
        "crate 0.2.17": "0.2.0 to 0.2.17",
        "crate 0.0.53": "0.0.90 to 0.1.7",
    }


# ---- answers, made of the values that the client has shown ----


def stream_of(number: int, name: str, topics: int = 0, size: int = 0, messages: int = 0) -> StreamSummary:
    return StreamSummary(number - 1, TIME_US, topics, size, messages, name)


def topic_of(
    number: int, name: str, expiry_us: int, size: int = 0, messages: int = 0, replication: int = 1
) -> TopicSummary:
    unlimited = (1 << 64) - 1
    return TopicSummary(number - 1, TIME_US, 2, expiry_us, 1, unlimited, replication, size, messages, name)


def partitions_of(generation: Generation, size: int = 0, messages: int = 0, segments: int = 0) -> bytes:
    values = [PartitionSummary(number, TIME_US, segments, 0, size, messages) for number in range(2)]
    return b"".join(replies.partition(generation, each) for each in values)


def made(code: int, section: str, generation: Generation) -> bytes | None:
    """The payload of the recorded answer; None: not one that is made of values."""
    never, minute_us = (1 << 64) - 1, 60_000_000
    expiry = minute_us if section in ("crate 0.0.53 (L6)", "crate 0.0.61 (L7)", "crate 0.2.17 (L9)") else never
    early = section.startswith(("crate 0.0", "crate 0.2"))
    stream = stream_of(7, "st", 1, 100, 1) if early else stream_of(1, "St One")
    topic = topic_of(3, "tp", expiry, 100, 1) if early else topic_of(1, "tp", never)
    group = GroupSummary(3, 2, 1, "cg")
    client = ClientSummary(9, 0, "1.2.3.4:5", ((6, 2, 3),) if generation.has(0, 0, 81) else ())
    match code:
        case Code.LOGIN_USER:
            return replies.logged_in(generation, LoggedIn(0))
        case Code.CREATE_STREAM:
            return replies.stream(generation, stream)
        case Code.CREATE_TOPIC:
            return replies.topic(generation, topic) + partitions_of(generation, segments=1)
        case Code.GET_STREAM if early:
            return replies.stream(generation, stream) + replies.topic(generation, topic)
        case Code.GET_STREAM:
            counted = msgspec.structs.replace(stream, topics_count=1)
            return replies.stream(generation, counted) + replies.topic(generation, topic)
        case Code.GET_TOPIC:
            return replies.topic(generation, topic) + partitions_of(generation, size=50, messages=1, segments=1)
        case Code.GET_CONSUMER_GROUP:
            return replies.group_details(generation, GroupDetails(group, [GroupMemberSummary(9, [0, 1])]))
        case Code.GET_CONSUMER_OFFSET:
            return replies.consumer_offset(generation, ConsumerOffset(0, 0, 3), 5)
        case Code.GET_USER:
            return replies.user_details(generation, UserDetails(0, TIME_US, True, "iggy"))
        case Code.GET_ME:
            return replies.client_details(generation, client)
        case _:
            return None


ANSWERED = [
    each
    for each in EXCHANGES
    if len(each.answer) > 8 and made(each.code, each.section, generation_in(each.section)) is not None
]


@pytest.mark.parametrize(
    "each", [each for each in ANSWERED if each.answer[:4] == bytes(4)], ids=lambda each: f"{each.section}-{each.code}"
)
def test_answers_are_made_byte_by_byte(each: Exchange) -> None:
    assert made(each.code, each.section, generation_in(each.section)) == each.answer[8:]


# ---- whole sessions ----

STREAM = bytes.fromhex("0f000000ca000000000000000653") + b"t One"


def masked(answer: bytes) -> bytes:
    """Without times and ids. A refusal: status and whether it has a body."""
    if answer[:4] != bytes(4):
        return answer[:4] + bytes([len(answer) > 8])
    return answer


def without_segments(answer: bytes) -> bytes:
    """A topic that was created: classic answers count no segments yet, the recorded ones were made up with one."""
    return answer[:-80] + b"".join(part[:12] + bytes(4) + part[16:] for part in (answer[-80:-40], answer[-40:]))


def answer_to(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    stream = connection.makefile("rb", buffering=0)
    head = stream.read(8)
    assert head is not None and len(head) == 8
    length = struct.unpack_from("<I", head, 4)[0]
    body = b""
    while len(body) < length:
        piece = stream.read(length - len(body))
        assert piece
        body += piece
    return head + body


def head_of_answer(connection: socket.socket, request: bytes) -> bytes:
    """As a client that reads no body of a refusal: what it asks next tells the server that it does not."""
    connection.sendall(request)
    head = connection.recv(8, socket.MSG_WAITALL)
    assert len(head) == 8
    return head


def differences(recorded: bytes, answer: bytes) -> list[int]:
    """Places that differ outside of times (0x..401e18240a06) and ids of messages (16 bytes, 0x11.. or 0x12..)."""
    free: set[int] = set()
    for time_at in re.finditer(re.escape(NOW[2:]), recorded):
        free |= set(range(time_at.start() - 2, time_at.start() + 6))
    for id_at in re.finditer(rb"[\x11\x12]\0{7}\x22\0{7}", recorded):
        free |= set(range(id_at.start(), id_at.start() + 16))
    if len(recorded) != len(answer):
        return [min(len(recorded), len(answer))]
    return [at for at, (one, two) in enumerate(zip(recorded, answer, strict=True)) if one != two and at not in free]


@pytest.mark.parametrize("section", [each for each in SECTIONS if each.startswith("PyPI")])
def test_a_server_answers_the_recorded_sessions(section: str, tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, socket.create_connection(server.endpoint, timeout=20) as connection:
        for number, each in enumerate(exchanges(section)):
            if section.startswith("PyPI 0.2.7") and each.code == Code.GET_STREAM and each.answer[8:]:
                [send] = [one for one in exchanges("PyPI 0.1.0") if one.code == Code.SEND_MESSAGES]
                assert answer_to(connection, send.request)[:4] == bytes(4)
                continue  # it counts what is there
            if section.startswith("PyPI 0.1.0") and each.answer[:4] not in (b"", bytes(4)):
                # nothing has told yet that it is not one of 0.2.5 to 0.4.4, which need a body
                assert head_of_answer(connection, each.request)[:4] == each.answer[:4]
                continue
            answer = answer_to(connection, each.request)
            if each.code == Code.CREATE_TOPIC and each.answer:
                each.answer, answer = without_segments(each.answer), without_segments(answer)
            if each.answer:
                assert not differences(masked(each.answer), masked(answer)), each.note
            else:
                assert answer[:4] == bytes(4), each.note
            if number == 0 and section.startswith("PyPI 0.2.6"):
                again = exchanges("PyPI 0.2.3")[0].request.replace(b"0.5.0", b"0.6.1")
                assert answer_to(connection, again)[:4] == bytes(4)
                assert answer_to(connection, STREAM)[:4] == bytes(4)
