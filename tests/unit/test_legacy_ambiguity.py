"""How often what one generation writes is taken for what another one does, over generated requests
(docs/protocol/legacy.md#ambiguous). First bytes: native/tests/test_iggy09.c; logins: test_legacy_detection.py."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from shardd.dispatch.legacy.dispatch import is_classic_batch
from shardd.protocol import primitives as wire
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError
from shardd.protocol.legacy import generations
from shardd.protocol.legacy.numbered import is_numbered, with_identifiers
from shardd.protocol.legacy.requests import decode
from shardd.protocol.requests import CreateGroupRequest, CreateStreamRequest, CreateTopicRequest, GroupRequest
from tests.support import wire as client

ROUNDS = 20_000
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.-_ "
ID_MAX = 4096
EARLIER = generations.WITHOUT_EXPIRY
FIRST_STREAM = (Code.GET_STREAM, Code.GET_TOPICS, Code.DELETE_STREAM, Code.CREATE_TOPIC)
PLACED = (
    Code.GET_TOPIC,
    Code.CREATE_PARTITIONS,
    Code.SEND_MESSAGES,
    Code.JOIN_CONSUMER_GROUP,
    Code.GET_CONSUMER_GROUPS,
)
CONSUMED = (Code.POLL_MESSAGES, Code.STORE_CONSUMER_OFFSET, Code.GET_CONSUMER_OFFSET)


def name(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randrange(1, 60)))


def number(rng: random.Random) -> int:
    return rng.randrange(1, ID_MAX + 1)


def identifier(rng: random.Random) -> bytes:
    return client.identifier(number(rng)) if rng.random() < 0.5 else client.identifier(name(rng))


def ambiguous(seed: int, wrong: Callable[[random.Random], bool]) -> int:
    rng = random.Random(seed)
    found = sum(wrong(rng) for _ in range(ROUNDS))
    print(f"{found} of {ROUNDS}")
    return found


@pytest.mark.parametrize("code", [*FIRST_STREAM, *PLACED, *CONSUMED])
def test_an_identifier_is_no_number_and_a_number_no_identifier(code: Code) -> None:
    def wrong(rng: random.Random) -> bool:
        consumer = b"\x01" + wire.u32(number(rng)) if code in CONSUMED else b""
        rest = rng.randbytes(rng.randrange(0, 40))
        later = consumer + identifier(rng) + identifier(rng) + rest
        earlier = consumer + wire.u32(number(rng)) + wire.u32(number(rng)) + rest
        return is_numbered(code, later) or not is_numbered(code, earlier)

    assert ambiguous(code, wrong) == 0


def test_numbers_become_the_identifiers_of_the_same_ids() -> None:
    rng = random.Random(1)
    for _ in range(ROUNDS // 10):
        stream, topic, partition = number(rng), number(rng), number(rng)
        sent = with_identifiers(Code.CREATE_PARTITIONS, wire.u32(stream) + wire.u32(topic) + wire.u32(partition))
        assert sent == client.identifier(stream) + client.identifier(topic) + wire.u32(partition)


@pytest.mark.parametrize("known", [False, True])
def test_streams_named_to_the_end_of_the_payload(known: bool) -> None:
    """Name to the end (0.0.41) or with its length (0.0.50): taken for the other when the first letter is the length of
    what follows, which takes more than 32 letters. `known`: which of the two it is."""

    def wrong(rng: random.Random) -> bool:
        text, chosen = name(rng), number(rng)
        found: list[str] = []
        for encoded in (text.encode(), wire.text8(text)):
            generation = EARLIER if known and not found else generations.WITHOUT_USERS
            request, _ = decode(Code.CREATE_STREAM, wire.u32(chosen) + encoded, generation)
            assert isinstance(request, CreateStreamRequest)
            found.append(request.name)
        return found != [text, text]

    assert ambiguous(2, wrong) <= (0 if known else ROUNDS // 100)


@pytest.mark.parametrize("known", [False, True])
def test_topics_named_to_the_end_of_the_payload(known: bool) -> None:
    """The same of topics, whose expiry (0.0.50) stands where earlier ones have their name."""

    def wrong(rng: random.Random) -> bool:
        text, partitions = name(rng), rng.randrange(1, 1001)
        head = client.identifier(number(rng)) + wire.u32(number(rng)) + wire.u32(partitions)
        found: list[tuple[str, int]] = []
        for rest in (text.encode(), wire.u32(rng.choice((0, 60, rng.randrange(1 << 31)))) + wire.text8(text)):
            try:
                generation = EARLIER if known and not found else generations.WITHOUT_USERS
                request, _ = decode(Code.CREATE_TOPIC, head + rest, generation)
            except ShardError:
                return True
            assert isinstance(request, CreateTopicRequest)
            found.append((request.name, request.partitions_count))
        return found != [(text, partitions)] * 2

    assert ambiguous(3, wrong) <= (0 if known else ROUNDS // 100)


def test_groups_by_number_and_by_identifier() -> None:
    def wrong(rng: random.Random) -> bool:
        place = identifier(rng) + identifier(rng)
        group, text = number(rng), name(rng)
        found = []
        for encoded in (wire.u32(group), client.identifier(group), client.identifier(text)):
            request, _ = decode(Code.JOIN_CONSUMER_GROUP, place + encoded, generations.WITHOUT_SIZES)
            assert isinstance(request, GroupRequest)
            found.append(request.group)
        return found != [group - 1, group - 1, text]

    assert ambiguous(4, wrong) == 0


def test_groups_with_and_without_a_name() -> None:
    def wrong(rng: random.Random) -> bool:
        place, group, text = identifier(rng) + identifier(rng), number(rng), name(rng)
        found = []
        for encoded in (wire.u32(group), wire.u32(group) + wire.text8(text)):
            request, _ = decode(Code.CREATE_CONSUMER_GROUP, place + encoded, generations.WITHOUT_SIZES)
            assert isinstance(request, CreateGroupRequest)
            found.append((request.chosen_id, request.name))
        return found != [(group - 1, str(group)), (group - 1, text)]

    assert ambiguous(5, wrong) == 0


def test_headers_of_56_bytes_are_not_taken_for_classic_ones_nor_these_for_them() -> None:
    def wrong(rng: random.Random) -> bool:
        messages = [
            client.message(rng.randbytes(rng.randrange(0, 90)), rng.randbytes(rng.choice((0, 9)))) for _ in "ab"
        ]
        short = [each[:56] + each[64:] for each in messages]
        later, earlier = (client.batch("s", "t", client.balanced(), each) for each in (messages, short))
        return not is_classic_batch(later) or is_classic_batch(earlier)

    assert ambiguous(6, wrong) == 0


def records(rng: random.Random, form: int) -> bytes:
    parts = []
    for _ in range(rng.randrange(1, 6)):
        payload = rng.randbytes(rng.randrange(1, 60))
        headers = b"" if form == 20 else struct.pack("<I", 0)
        parts.append(bytes(16) + headers + struct.pack("<I", len(payload)) + payload)
    return b"".join(parts)


@pytest.mark.parametrize("form", [20, 24])
def test_records_with_and_without_room_for_user_headers(form: int) -> None:
    head = client.identifier(1) + client.identifier(1) + client.balanced()

    def wrong(rng: random.Random) -> bool:
        _, proved = decode(Code.SEND_MESSAGES, head + records(rng, form), generations.WITHOUT_USERS)
        return proved is not (generations.SHORT_RECORDS if form == 20 else generations.WITHOUT_USERS)

    assert ambiguous(form, wrong) <= ROUNDS // 1000
