"""Requests of earlier generations under mutation, and how often one layout is taken for another's
(docs/protocol/legacy.md#requests)."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from shardd.protocol import primitives as wire
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError
from shardd.protocol.legacy import generations
from shardd.protocol.legacy.generations import GENERATIONS, Generation, generation_of_login
from shardd.protocol.legacy.requests import decode
from shardd.protocol.requests import CreateTopicRequest, Login
from tests.golden.test_legacy_frames import EXCHANGES, Exchange, generation_in

ROUNDS = 4_000
STREAM = b"\x01\x04\x01\0\0\0"


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: f"{each.section}-{each.request[4:16].hex()}")
def test_mutated_requests_are_refused_or_another_request(each: Exchange) -> None:
    """At every byte, and cut at every byte, for every generation: a typed refusal or a request, nothing else."""
    generation = generation_in(each.section)
    for at in range(len(each.payload)):
        for value in (0, 1, 0x7F, 0xFF, each.payload[at] ^ 0x80):
            mutated = each.payload[:at] + bytes((value,)) + each.payload[at + 1 :]
            for spoken in (generation, generations.UNVERSIONED, generations.PYTHON_0_5):
                try_to_decode(each.code, mutated, spoken)
        for spoken in GENERATIONS.values():
            try_to_decode(each.code, each.payload[:at], spoken)


def try_to_decode(code: int, payload: bytes, generation: Generation) -> None:
    with contextlib.suppress(ShardError):
        decode(code, payload, generation)


def topic(rng: random.Random, generation: Generation) -> tuple[bytes, int, str]:
    """As this generation writes CREATE_TOPIC: the payload, partitions, name."""
    partitions, seconds = rng.randrange(0, 1001), rng.choice((0, 60, rng.randrange(1 << 32)))
    name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789.-_ ", k=rng.randrange(1, 60)))
    size, replication = rng.choice((0, rng.randrange(1 << 40))), rng.randrange(0, 4)
    parts = [STREAM, wire.u32(rng.randrange(0, 100)), wire.u32(partitions)]
    if generation.has(0, 2, 18):
        parts.append(wire.u8(rng.randrange(1, 3)))
    parts.append(wire.u64(seconds * 1_000_000) if generation.has(0, 5, 0) else wire.u32(seconds))
    if generation.has(0, 2, 0):
        parts += (wire.u64(size), wire.u8(replication))
    return b"".join(parts) + wire.text8(name), partitions, name


@pytest.mark.parametrize("number", [19, 20, 21, 22])
def test_no_topic_of_one_generation_is_taken_for_that_of_another(number: int) -> None:
    rng = random.Random(number)
    generation, ambiguous = GENERATIONS[number], 0
    for _ in range(ROUNDS):
        payload, partitions, name = topic(rng, generation)
        versioned = generation.has(0, 5, 0)
        request, proved = decode(Code.CREATE_TOPIC, payload, generation if versioned else generations.UNVERSIONED)
        assert isinstance(request, CreateTopicRequest)
        ambiguous += (request.partitions_count, request.name) != (partitions, name) or proved.name != generation.name
    assert ambiguous == 0


def login(version: bytes | None, context: bytes = b"") -> bytes:
    texts = b"\x04iggy\x04iggy"
    if version is None:
        return texts
    return texts + struct.pack("<I", len(version)) + version + struct.pack("<I", len(context)) + context


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (login(None), "0.2.18 to 0.4.4"),
        (login(b"0.5.0"), "0.5.0 to 0.6.9"),
        (login(b"0.6.10"), "0.6.10 to 0.6.51"),
        (login(b"0.6.202"), "0.6.60 to 0.6.210"),
        (login(b"0.7.0"), "0.7.0 to 0.7.0"),
        (login(b"0.8.0"), "0.8.0 to 0.8.0"),
        (login(b"0.9.0"), None),
        (login(b"0.10.0"), None),
        (login(b""), None),
        (login(b"0.6.30", b"java-sdk"), None),
        (login(b"0.6"), None),
        (login(b"0.6.x"), None),
        (b"", None),
        (b"\x04iggy", None),
    ],
)
def test_a_login_is_taken_for_what_it_says(payload: bytes, told: str | None) -> None:
    found = generation_of_login(Code.LOGIN_USER, payload)
    assert (None if found is None else found.name) == told


def test_classic_logins_are_never_those_of_earlier_clients() -> None:
    rng = random.Random(7)
    for _ in range(ROUNDS):
        name, password = ("x" * rng.randrange(1, 200) for _ in range(2))
        version = rng.choice(("", "0.9.0", "0.10.0", "iggy-java-sdk/0.8.0"))
        context = rng.choice(("", "csharp-sdk"))
        assert generation_of_login(Code.LOGIN_USER, Login(name, password, version, context).encode()) is None
