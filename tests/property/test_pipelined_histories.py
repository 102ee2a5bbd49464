"""A client that sends everything at once gets the answers of one that waits for each of them, and leaves the same
messages and offsets: random histories on a server of two shards, once at depth 1, once as one stream of bytes."""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.server import Server

pytestmark = pytest.mark.io_engine

PARTITIONS = 6
STEPS = 160
SEEDS = range(8)
LEVELS = ("written", "durable", "memory")
PIECE_BYTES_MAX = 30_000
UNKNOWN_COMMAND = 9_999
Frame = Callable[[str], bytes]  # of a topic by its name: both runs have one of their own


@pytest.fixture(scope="module", params=LEVELS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    settings = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2", "SHARDD_SYSTEM_PARTITION_ACK": request.param}
    with Server(tmp_path_factory.mktemp("pipelined") / "data", env=settings) as running:
        with wire.connect(running.address) as root:
            root.create_stream("s")
        yield running


def place(topic: str) -> bytes:
    return wire.identifier("s") + wire.identifier(topic)


def make_topic(connection: wire.Wire, topic: str) -> None:
    connection.create_topic("s", topic, PARTITIONS)
    connection.request(Code.CREATE_CONSUMER_GROUP, place(topic) + wire.str8("g"))


# ---- steps ----


def ping(_dice: random.Random, _name: str) -> Frame:
    return lambda _topic: wire.frame(wire.PING)


def send(dice: random.Random, name: str) -> Frame:
    count, size = dice.choice([(1, 10), (1, 100), (3, 50), (1, 3_000), (2, 20_000)])
    ways = [wire.to_partition(dice.randrange(PARTITIONS)), wire.to_key(dice.randbytes(3)), wire.balanced()]
    partitioning = dice.choices(ways, [6, 2, 1])[0]
    messages = [wire.message(f"{name}-{n}".encode().ljust(size, b".")) for n in range(count)]
    return lambda topic: wire.frame(wire.SEND_MESSAGES, wire.batch("s", topic, partitioning, messages))


def bad_send(dice: random.Random, name: str) -> Frame:
    message = wire.message(name.encode())
    kind = dice.randrange(3)

    def make(topic: str) -> bytes:
        if kind == 0:
            return wire.frame(wire.SEND_MESSAGES, wire.batch("s", topic, wire.to_partition(77), [message]))
        if kind == 1:
            return wire.frame(wire.SEND_MESSAGES, wire.batch("s", "missing", wire.to_partition(0), [message]))
        return wire.frame(wire.SEND_MESSAGES, wire.batch("s", topic, wire.to_partition(0), [message])[:-1])

    return make


def poll(dice: random.Random, _name: str) -> Frame:
    who = dice.choice([wire.consumer(1), wire.consumer(2), wire.group("g")])
    partition = dice.randrange(PARTITIONS) if who[0] == 1 else dice.choice([None, 0, 1])
    how = struct.pack(
        "<BQIB", dice.choice([1, 3, 4, 5]), dice.randrange(4), dice.choice([1, 10, 1000]), dice.random() < 0.5
    )
    middle = wire.optional_partition(partition) + how
    return lambda topic: wire.frame(wire.POLL_MESSAGES, who + place(topic) + middle)


def store(dice: random.Random, _name: str) -> Frame:
    who = dice.choice([wire.consumer(1), wire.consumer(2), wire.group("g")])
    value = struct.pack("<Q", dice.choice([0, 1, 2, 1 << 40]))
    middle = wire.optional_partition(dice.randrange(PARTITIONS + 1)) + value
    return lambda topic: wire.frame(wire.STORE_OFFSET, who + place(topic) + middle)


def stored(dice: random.Random, _name: str) -> Frame:
    partition = wire.optional_partition(dice.randrange(PARTITIONS))
    return lambda topic: wire.frame(wire.GET_OFFSET, wire.consumer(1) + place(topic) + partition)


def group_change(dice: random.Random, _name: str) -> Frame:
    code = dice.choice([Code.JOIN_CONSUMER_GROUP, Code.LEAVE_CONSUMER_GROUP])
    return lambda topic: wire.frame(code, place(topic) + wire.identifier("g"))


def out_and_in(dice: random.Random, name: str) -> Frame:
    """Logs out, asks something that needs a login, logs in again."""
    between = send(dice, name)
    credentials = wire.str8("iggy") + wire.str8("iggy") + bytes(8)
    return lambda topic: (
        wire.frame(wire.LOGOUT_USER) + between(topic) + wire.frame(wire.PING) + wire.frame(wire.LOGIN_USER, credentials)
    )


def strange(dice: random.Random, _name: str) -> Frame:
    frames = [struct.pack("<II", 3, 1), wire.frame(UNKNOWN_COMMAND, b"x"), wire.frame(wire.STORE_OFFSET, bytes(5_000))]
    frames += [wire.frame(wire.POLL_MESSAGES, b"\x07"), wire.frame(wire.PING, b"more")]
    frame = dice.choice(frames)
    return lambda _topic: frame


def purge(_dice: random.Random, _name: str) -> Frame:
    return lambda topic: wire.frame(wire.PURGE_TOPIC, place(topic))


STEP_KINDS: dict[Callable[[random.Random, str], Frame], int] = {
    ping: 10, send: 100, bad_send: 6, poll: 20, store: 20, stored: 4, group_change: 2, out_and_in: 1, strange: 3,
    purge: 1,
}  # fmt: skip


def history(seed: int) -> list[Frame]:
    dice = random.Random(seed)
    kinds = dice.choices(list(STEP_KINDS), list(STEP_KINDS.values()), k=STEPS)
    return [kind(dice, f"{seed}-{number}") for number, kind in enumerate(kinds)]


# ---- runs ----


def split(data: bytes) -> list[bytes]:
    """Single frames."""
    frames, at = [], 0
    while at < len(data):
        size = 4 + max(4, int.from_bytes(data[at : at + 4], "little"))  # one that says less than its head has no more
        frames.append(data[at : at + size])
        at += size
    return frames


def comparable(frame: bytes, answer: tuple[int, bytes]) -> object:
    """Without what differs between two topics: ids and times of messages."""
    code, (status, payload) = int.from_bytes(frame[4:8], "little"), answer
    if code == wire.POLL_MESSAGES and status == 0:
        polled = wire.parse_polled(payload)
        return polled.partition, polled.current_offset, [(each.offset, each.payload) for each in polled.messages]
    return code, status, payload


def first_difference(
    frames: Sequence[bytes], expected: Sequence[tuple[int, bytes]], found: Sequence[tuple[int, bytes]]
) -> int | None:
    """Number of the first request with another answer."""
    for number, (frame, right, is_) in enumerate(zip(frames, expected, found, strict=True)):
        if comparable(frame, is_) != comparable(frame, right):
            return number
    return None


def one_by_one(connection: wire.Wire, frames: Sequence[bytes]) -> list[tuple[int, bytes]]:
    answers = []
    for frame in frames:
        connection.send_bytes(frame)
        answers.append(connection.reply())
    return answers


def all_at_once(connection: wire.Wire, frames: Sequence[bytes], dice: random.Random) -> list[tuple[int, bytes]]:
    data = b"".join(frames)

    def push() -> None:
        at = 0
        while at < len(data):
            size = dice.choice([dice.randrange(1, 200), dice.randrange(1, PIECE_BYTES_MAX)])
            connection.send_bytes(data[at : at + size])
            at += size

    sender = threading.Thread(target=push, daemon=True)
    sender.start()
    answers = [connection.reply() for _ in frames]
    sender.join()
    return answers


def content(connection: wire.Wire, topic: str) -> list[object]:
    partitions = range(PARTITIONS)
    messages = [[each.payload for each in connection.read_all("s", topic, partition)] for partition in partitions]
    offsets = [connection.get_offset("s", topic, partition, who) for partition in partitions for who in (1, 2)]
    return [messages, offsets]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pipeline_is_answered_as_one_request_after_the_other(server: Server, seed: int) -> None:
    steps = history(seed)
    with wire.connect(server.address) as first, wire.connect(server.address) as second:
        topics = [f"one-{seed}", f"all-{seed}"]
        for topic in topics:
            make_topic(first, topic)
        one, together = ([frame for step in steps for frame in split(step(topic))] for topic in topics)
        expected = one_by_one(first, one)
        found = all_at_once(second, together, random.Random(seed))
        assert first_difference(one, expected, found) is None, f"seed {seed}"
        assert content(first, topics[1]) == content(first, topics[0])


def test_swapped_answers_are_noticed() -> None:
    frames = [wire.frame(wire.PING), wire.frame(wire.SEND_MESSAGES), wire.frame(wire.PING)]
    answers = [(0, b""), (1009, b""), (0, b"")]
    assert first_difference(frames, answers, answers) is None
    assert first_difference(frames, answers, [answers[1], answers[0], answers[2]]) == 0
