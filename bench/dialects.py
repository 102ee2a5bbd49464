"""`python -m bench.dialects` (`make bench-dialects`): what a SEND and a POLL cost the server in each dialect, against
the classic one, in one run. Compared is CPU time of the worker for a request: the client, which is Python, does not
count, nor does who else is busy. A ratio of 0.9 means that the dialect does 0.9 of the classic requests with the same
CPU."""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import touch_memory
from bench.report import text_table
from bench.targets import Shardd
from bench.wire import Wire, identifier, name, send_request
from shardd.protocol import record_layout
from shardd.protocol.codes import Code

IGGY09_HEAD = 256
POLLED_HEAD = 16
HEADER, NARROW_HEADER, INDEX_BYTES = 64, 56, 16
SENT_BYTES_MAX = 64 << 20  # of a cell in a round


@dataclass(frozen=True)
class Shape:
    batch: int
    payload_bytes: int
    ratio_min: float

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.payload_bytes}"

    @property
    def stored_bytes(self) -> int:
        return self.batch * (HEADER + self.payload_bytes)


SHAPES = (Shape(1, 100, 0.9), Shape(10, 100, 0.9), Shape(1, 100_000, 0.65), Shape(1, 1_000_000, 0.65))


class Speaker:
    """A connection that is logged in. Frames are made before anything is measured."""

    name = "classic"
    version = ""
    first_id = 0

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(1 << 20))
        self._login()

    def close(self) -> None:
        self._socket.close()

    def _login(self) -> None:
        version = self.version.encode()
        payload = name("iggy") + name("iggy") + struct.pack("<I", len(version)) + version + bytes(4)
        self.ask(self._frame(Code.LOGIN_USER, payload))

    @staticmethod
    def _frame(code: int, payload: bytes) -> bytes:
        return struct.pack("<II", 4 + len(payload), code) + payload

    def _address(self, stream: int) -> bytes:
        return identifier(stream + self.first_id) + identifier(self.first_id)

    def send_frame(self, stream: int, shape: Shape) -> bytes:
        return self._frame(Code.SEND_MESSAGES, send_request(stream, bytes(shape.payload_bytes), shape.batch))

    def poll_frame(self, stream: int, offset: int, count: int) -> bytes:
        where = b"\1" + identifier(1) + self._address(stream) + b"\1" + bytes(4)
        return self._frame(Code.POLL_MESSAGES, where + struct.pack("<BQIB", 1, offset, count, 0))

    def ask(self, frame: bytes) -> int:
        """Bytes of the answer's body. RuntimeError: it is a refusal."""
        self._socket.sendall(frame)
        status, length = struct.unpack("<II", self._read(8))
        self._skip(length)
        if status != 0:
            raise RuntimeError(f"{self.name}: status {status}")
        return int(length)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise RuntimeError(f"{self.name}: the connection ended")
            data += part
        return data

    def _skip(self, size: int) -> None:
        while size > 0:
            got = self._socket.recv_into(self._buffer[: min(size, len(self._buffer))])
            if got == 0:
                raise RuntimeError(f"{self.name}: the connection ended")
            size -= got


class Python06(Speaker):
    """apache-iggy 0.6: headers of 56 bytes."""

    name = "0.6"
    version = "0.8.0"

    def send_frame(self, stream: int, shape: Shape) -> bytes:
        count, size = shape.batch, NARROW_HEADER + shape.payload_bytes
        metadata = self._address(stream) + b"\2\4" + struct.pack("<II", self.first_id, count)
        index = b"".join(record_layout.INDEX_ENTRY.pack(0, (number + 1) * size, 0) for number in range(count))
        record = bytes(52) + struct.pack("<I", shape.payload_bytes) + bytes(shape.payload_bytes)
        return self._frame(Code.SEND_MESSAGES, struct.pack("<I", len(metadata)) + metadata + index + record * count)


class Python05(Python06):
    """apache-iggy 0.5: ids begin at 1, too."""

    name = "0.5"
    version = "0.7.0"
    first_id = 1

    def poll_frame(self, stream: int, offset: int, count: int) -> bytes:
        where = b"\1" + identifier(1) + self._address(stream) + struct.pack("<I", self.first_id)
        return self._frame(Code.POLL_MESSAGES, where + struct.pack("<BQIB", 1, offset, count, 0))


class Iggy09(Speaker):
    """What it sends is a batch that the server made of stored messages: its checksums are right."""

    name = "0.9"

    def _login(self) -> None:
        self._session = self._request = 0
        self._client = os.urandom(16)  # of two connections with one id only the later goes on
        body = struct.pack("<I", 11264) + b"".join(map(name, ("bench", "0", "iggy", "iggy"))) + bytes(4)
        self._socket.sendall(self._head(1, len(body)) + body)
        self._session = struct.unpack_from("<Q", self._answer(), 8)[0]

    def _head(self, operation: int, length: int, code: int = 0) -> bytes:
        head = bytearray(IGGY09_HEAD)
        struct.pack_into("<I", head, 48, IGGY09_HEAD + length)
        head[60] = 5
        head[128:144] = self._client
        struct.pack_into("<Q", head, 168, self._request)
        head[176] = operation
        struct.pack_into("<Q", head, 184, self._session)
        struct.pack_into("<I", head, 196, code)
        return bytes(head)

    def _answer(self) -> bytes:
        head = self._read(IGGY09_HEAD)
        if head[60] != 8 or head[216:220] != bytes(4):
            raise RuntimeError(f"0.9: refused, {head[216:256].hex()}")
        return self._read(struct.unpack_from("<I", head, 48)[0] - IGGY09_HEAD)

    def poll_frame(self, stream: int, offset: int, count: int) -> bytes:
        body = super().poll_frame(stream, offset, count)[8:]
        return self._head(2, len(body), Code.POLL_MESSAGES) + body

    def send_frame(self, stream: int, shape: Shape) -> bytes:
        """The stream has such a batch at its beginning."""
        self._socket.sendall(self.poll_frame(stream, 0, shape.batch))
        metadata = self._address(stream) + b"\2\4" + struct.pack("<II", 0, shape.batch)
        body = struct.pack("<I", len(metadata)) + metadata + self._answer()[POLLED_HEAD:]
        return self._head(160, len(body)) + body

    def ask(self, frame: bytes) -> int:
        if frame[176] == 160:
            self._request += 1
            frame = frame[:168] + struct.pack("<Q", self._request) + frame[176:]
        self._socket.sendall(frame)
        head = self._read(IGGY09_HEAD)
        length = int(struct.unpack_from("<I", head, 48)[0]) - IGGY09_HEAD
        self._skip(length)
        if head[60] != 8 or head[216:220] != bytes(4):
            raise RuntimeError(f"0.9: refused, {head[216:256].hex()}")
        return length


SPEAKERS: tuple[type[Speaker], ...] = (Speaker, Python05, Python06, Iggy09)


def cpu_ns(pid: int) -> int:
    """Of all threads of a process, those that have ended, too: its clock, as clock_getcpuclockid(3) names it."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def measure(server: Shardd, speaker: Speaker, operation: str, stream: int, shape: Shape, requests: int) -> float:
    """Microseconds of CPU for a request."""
    if operation == "send":
        frames = [speaker.send_frame(stream, shape)]
    else:
        frames = [speaker.poll_frame(stream, number * shape.batch, shape.batch) for number in range(requests)]
    pid = server.worker_pid(0)
    for frame in frames[:5]:
        speaker.ask(frame)
    began = cpu_ns(pid)
    for number in range(requests):
        length = speaker.ask(frames[number % len(frames)])
        if operation == "poll" and length < shape.batch * shape.payload_bytes:
            raise RuntimeError(f"{speaker.name}: a short answer")
    return (cpu_ns(pid) - began) / 1000 / requests


def run(
    server: Shardd, shapes: Sequence[Shape], rounds: int, requests_max: int, tell: Callable[[str], None]
) -> Results:
    results: Results = {}
    for shape in shapes:
        requests = max(10, min(requests_max, SENT_BYTES_MAX // shape.stored_bytes))
        for number in range(rounds):
            with Wire(server.port) as wire:
                stream = wire.create_stream("dialects")
                wire.create_topic(stream, "dialects", 1)
                for _ in range(requests):
                    wire.request(Code.SEND_MESSAGES, send_request(stream, bytes(shape.payload_bytes), shape.batch))
            for operation in ("send", "poll"):
                for kind in (*SPEAKERS[number % 4 :], *SPEAKERS[: number % 4]):
                    touch_memory(requests * shape.stored_bytes)
                    speaker = kind(server.port)
                    used = measure(server, speaker, operation, stream, shape, requests)
                    speaker.close()
                    results.setdefault((operation, shape), {}).setdefault(kind.name, []).append(used)
                    tell(f"{operation} {shape.name} {kind.name}: {used:.1f} us")
            with Wire(server.port) as wire:
                wire.delete_stream(stream)
    return results


Results = dict[tuple[str, Shape], dict[str, list[float]]]


def table(results: Results) -> str:
    body = []
    for (operation, shape), used in results.items():
        classic = used[Speaker.name]
        row = [f"{operation}-{shape.name}", f"{statistics.median(classic):.1f}"]
        held = True
        for kind in SPEAKERS[1:]:
            ratios = [ours / theirs for ours, theirs in zip(classic, used[kind.name], strict=True)]
            median = statistics.median(ratios)
            held = held and median >= shape.ratio_min
            row += [f"{statistics.median(used[kind.name]):.1f}", f"{median:.2f} [{min(ratios):.2f}..{max(ratios):.2f}]"]
        body.append([*row, f">= {shape.ratio_min}: {'met' if held else 'NOT met'}"])
    columns = ["line", "classic us"]
    for kind in SPEAKERS[1:]:
        columns += [f"{kind.name} us", f"{kind.name} ratio [min..max]"]
    return text_table([*columns, "target"], body)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.dialects", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000, help="of a cell in a round, at most (3000)")
    parser.add_argument("--shapes", nargs="+", default=[shape.name for shape in SHAPES], metavar="BATCHxBYTES")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the server keeps its data")
    options = parser.parse_args(words)
    shapes = [shape for shape in SHAPES if shape.name in options.shapes]
    with tempfile.TemporaryDirectory(prefix="shardd-bench-", dir=options.directory) as base:
        server = Shardd(Path(base) / "dialects", sorted(os.sched_getaffinity(0))[:1], None, {})
        try:
            found = run(server, shapes, options.rounds, options.requests, lambda text: print(text, file=sys.stderr))
        finally:
            server.stop()
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
