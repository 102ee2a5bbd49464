"""Seeded fuzzing of frames against a running server.

Each case sends a mutated frame, then looks: every whole frame is answered or the connection is closed, a connection
that the client ended is closed by the server, and another connection still works. `FUZZ_SEED` repeats a run,
`FUZZ_SECONDS` sets its length.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import golden, wire
from tests.support.server import Server

DEFAULT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
FRAME_MAX_BYTES = 1 << 20
# A login costs a password hash; after the others most answers would be 40 or 1009.
RARE_CODES = frozenset({wire.LOGIN_USER, wire.LOGOUT_USER, wire.DELETE_STREAM, wire.DELETE_TOPIC})
GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "classic-0.8.0.jsonl.xz"
NUMBERS = (0, 1, 3, 4, 5, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x100000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def recorded_frames() -> list[bytes]:
    """The requests of the golden data, right and wrong ones, as whole frames."""
    found = set()
    for scenario in golden.load(GOLDEN):
        for step in scenario.steps:
            request = golden.request_bytes(step, {})
            if 8 <= len(request) <= 4096 and struct.unpack_from("<I", request)[0] == len(request) - 4:
                found.add(request)
    return sorted(found)


def right_frames() -> list[bytes]:
    """Requests that succeed on the topic that `clean` makes."""
    frames = []
    for stream, topic in ((0, 0), ("fuzz", "fuzz")):
        address = wire.identifier(stream) + wire.identifier(topic)
        for count in (1, 10, 100):
            messages = [wire.message(b"fuzz" * count, b"h" * count)] * count
            for partitioning in (wire.balanced(), wire.to_partition(1), wire.to_key(b"key")):
                frames.append(wire.frame(wire.SEND_MESSAGES, wire.batch(stream, topic, partitioning, messages)))
        for who in (1, "someone"):
            reader = wire.consumer(who) + address + wire.optional_partition(0)
            for strategy in range(1, 6):
                poll = reader + struct.pack("<BQIB", strategy, 0, 10, 1)
                frames.append(wire.frame(wire.POLL_MESSAGES, poll))
            frames.append(wire.frame(wire.STORE_OFFSET, reader + bytes(8)))
            frames += [wire.frame(code, reader) for code in (wire.GET_OFFSET, wire.DELETE_OFFSET)]
        frames += [wire.frame(code, address) for code in (wire.GET_TOPIC, wire.PURGE_TOPIC, wire.DELETE_TOPIC)]
        frames += [wire.frame(code, wire.identifier(stream)) for code in (wire.GET_STREAM, wire.DELETE_STREAM)]
        frames.append(wire.frame(wire.FLUSH_UNSAVED_BUFFER, address + struct.pack("<IB", 0, 1)))
        frames.append(wire.frame(wire.CREATE_PARTITIONS, address + struct.pack("<I", 1)))
        frames.append(wire.frame(wire.CREATE_STREAM, wire.str8(f"stream {stream}")))
    frames += [
        wire.frame(code) for code in (wire.PING, wire.GET_STATS, wire.GET_ME, wire.GET_CLIENTS, wire.GET_STREAMS)
    ]
    return frames


ROOT_CHANGES = tuple(
    struct.pack("<I", code) + root for code in (35, 37) for root in (wire.identifier(0), wire.identifier("iggy"))
)


def changes_root(data: bytes) -> bool:
    """A right request of root to rename, stop or re-key its own account: nobody could log in after it."""
    return any(change in data for change in ROOT_CHANGES)


class Mutator:
    def __init__(self, generator: random.Random) -> None:
        self.random = generator
        self.right, self.recorded = right_frames(), recorded_frames()

    def frame(self) -> bytes:
        while True:
            frame = self.random.choice(self.right if self.random.random() < 0.7 else self.recorded)
            code = struct.unpack_from("<I", frame, 4)[0]
            if code not in RARE_CODES or self.random.random() < 0.02:
                return frame

    def next(self) -> bytes:
        """One frame, mostly mutated, mostly with a right length field again, so that the rest is looked at."""
        while changes_root(data := self._mutated()):
            continue
        return data

    def _mutated(self) -> bytes:
        data = bytearray(self.frame())
        for _ in range(self.random.choice((0, 1, 1, 1, 1, 2, 3))):
            self.random.choice((self.flip, self.number, self.cut, self.insert, self.splice))(data)
        if len(data) < 8 or self.random.random() < 0.9:
            data = data.ljust(8, b"\0")
            struct.pack_into("<I", data, 0, len(data) - 4)
        return bytes(data)

    def flip(self, data: bytearray) -> None:
        if data:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)

    def number(self, data: bytearray) -> None:
        """A telling number over any four bytes behind the code."""
        if len(data) >= 13:
            struct.pack_into("<I", data, self.random.randrange(8, len(data) - 4), self.random.choice(NUMBERS))

    def cut(self, data: bytearray) -> None:
        del data[self.random.randrange(4, len(data) + 1) if len(data) > 4 else 0 :]

    def insert(self, data: bytearray) -> None:
        at = self.random.randrange(len(data) + 1)
        data[at:at] = self.random.randbytes(self.random.randrange(64))

    def splice(self, data: bytearray) -> None:
        other = self.frame()
        data[self.random.randrange(len(data) + 1) :] = other[self.random.randrange(len(other)) :]


def split(data: bytes) -> tuple[int, bool]:
    """(whole frames in the data, True when the rest waits for more bytes). A length below 4 takes 8 bytes."""
    whole, at = 0, 0
    while at + 8 <= len(data):
        end = at + max(8, 4 + struct.unpack_from("<I", data, at)[0])
        if end > len(data):
            return whole, True
        whole, at = whole + 1, end
    return whole, at != len(data)


class Target:
    """The connection that is fuzzed, made anew when it was closed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: wire.Wire | None = None
        self.statuses: Counter[int] = Counter()
        self.closed = 0

    def case(self, data: bytes, *, login: bool) -> None:
        if self.connection is None:
            self.connection = wire.Wire(self.address, timeout_s=ANSWER_TIMEOUT_S)
            if login:
                self.connection.login()
        whole, waiting = split(data)
        try:
            self.connection.send_bytes(data)
            for _ in range(whole):
                status, payload = self.connection.reply()
                assert status == 0 or payload == b"", "an error with a payload"
                self.statuses[status] += 1
            if waiting:
                self._end()
        except TimeoutError:
            raise AssertionError(f"no answer and no close within {ANSWER_TIMEOUT_S} s: {data.hex()}") from None
        except OSError:  # closed, also while we were sending or ending our half
            self.closed += 1
            self._drop()

    def _end(self) -> None:
        """Ends our half in the middle of a frame: the server must end its half too."""
        assert self.connection is not None
        self.connection.socket.shutdown(socket.SHUT_WR)
        while self.connection.socket.recv(1 << 16):
            pass
        self._drop()

    def _drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def fuzz(server: Server, seconds: float, seed: int) -> tuple[int, Counter[int], int]:
    """(cases, answers by status, closes)"""
    mutator = Mutator(random.Random(seed))
    cases, deadline = 0, time.monotonic() + seconds
    targets = [Target(server.address), Target(server.address)]
    with wire.connect(server.address) as control:
        while time.monotonic() < deadline:
            data = mutator.next()
            number = mutator.random.randrange(2)
            targets[number].case(data, login=number == 0)
            control.ping()
            cases += 1
            if cases % 100 == 0:
                clean(control)
        clean(control)
    return cases, targets[0].statuses + targets[1].statuses, sum(target.closed for target in targets)


def clean(control: wire.Wire) -> None:
    """Deletes what the cases made and leaves a topic that sends and polls can reach; proves that they still work."""
    for stream in sorted(control.streams().values(), reverse=True):
        control.delete_stream(stream)
    control.create_topic(control.create_stream("fuzz"), "fuzz", 3)
    control.send(0, 0, wire.to_partition(0), [wire.message(b"control")])
    assert [item.payload for item in control.read_all(0, 0, 0)] == [b"control"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("fuzz"))
    running.start()
    with wire.connect(running.address) as control:
        clean(control)
    yield running
    running.stop()


def battery(server: Server, seconds: float) -> None:
    seed = int(os.environ.get("FUZZ_SEED", secrets.randbelow(2**32)))
    print(f"FUZZ_SEED={seed}")
    workers = list(server.worker_pids())
    cases, statuses, closes = fuzz(server, seconds, seed)
    print(f"{cases} cases, {closes} closes, answers by status: {dict(statuses.most_common())}")
    assert cases > 20 * seconds
    assert statuses.total() > cases // 2
    assert statuses[0] > cases // 10, "hardly any case gets past the checks"
    assert len(statuses) > 10, "the cases reach too few checks"
    assert list(server.worker_pids()) == workers, "a worker died"


@pytest.mark.timeout(300)
def test_mutated_frames_are_answered_or_closed_and_others_work(server: Server) -> None:
    battery(server, float(os.environ.get("FUZZ_SECONDS", DEFAULT_S)))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_minute_of_mutated_frames(server: Server) -> None:
    battery(server, 60.0)
