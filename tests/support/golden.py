"""Replays recorded answers of the reference server 0.8.0 (tests/golden/data) and compares them byte by byte.

Format: one JSON object per line (a scenario) with `name`, `about`, `steps`; the fields of a step are described in
tests/golden/README.md. A step with `bug` may be answered like the record or like its `better`.
"""

from __future__ import annotations

import json
import lzma
import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from tests.support.wire import GET_STREAMS, HEADER_SIZE, LOGIN_USER, Wire, frame, identifier, str8

SILENCE_S = 0.15  # without a byte: no answer comes
SETTLE_S = 0.10  # after the connections of a scenario were closed
EVENTUALLY_S = 60.0  # in which an answer becomes the recorded one
CLOSE_WAIT_S = 30.0  # in which an expected close must happen
OPTIONAL_CLOSE_WAIT_S = 0.3  # in which an allowed close happens, if at all
DAY_US = 86_400_000_000
GET_USERS, DELETE_USER = 32, 34
PLACEHOLDER = re.compile(r"\{([^}]*)\}")

Step = dict[str, Any]
Mark = list[Any]  # [start, end, reason]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    config: dict[str, Any]
    steps: tuple[Step, ...]


def load(path: Path) -> Iterator[Scenario]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            yield Scenario(item["name"], item["about"], item.get("config", {}), tuple(item["steps"]))


def command_code(step: Step) -> int | None:
    """The command code of a request, None for actions and for requests that have no plain frame header."""
    head = step.get("request_hex", "")[:16]
    if len(head) < 16 or PLACEHOLDER.search(head) or "{" in head:
        return None
    return int.from_bytes(bytes.fromhex(head[8:16]), "little")


def request_bytes(step: Step, captures: dict[str, bytes]) -> bytes:
    """The request with `{name}` and `{zeros:N}` filled in and its length corrected when the step asks for it."""

    def fill(found: re.Match[str]) -> str:
        name = found.group(1)
        return bytes(int(name[6:])).hex() if name.startswith("zeros:") else captures.get(name, b"").hex()

    data = bytearray.fromhex(PLACEHOLDER.sub(fill, step.get("request_hex", "")))
    if step.get("fix_length"):
        data[0:4] = struct.pack("<I", len(data) - 4)
    return bytes(data)


def capture(step: Step, payload: bytes, captures: dict[str, bytes]) -> None:
    for item in step.get("capture", ()):
        field_bytes = payload[item["start"] : item["end"]]
        if field_bytes and item["add"]:
            number = int.from_bytes(field_bytes, "little") + item["add"]
            field_bytes = number.to_bytes(len(field_bytes), "little")
        captures[item["name"]] = field_bytes


def without_masked(payload: bytes, marks: list[Mark]) -> bytes:
    """Masked ranges as zeros; an open range cuts the rest off, whatever its length."""
    out = bytearray(payload)
    for start, end, _reason in marks:
        if end is None:
            del out[start:]
            break
        if end <= len(out):
            out[start:end] = bytes(end - start)
    return bytes(out)


def _check_checksum(payload: bytes, start: int, number: int) -> bool:
    headers, size = struct.unpack_from("<II", payload, start + 48)
    return xxhash.xxh3_64_intdigest(payload[start + 8 : start + HEADER_SIZE + headers + size]) == number


def implausible(payload: bytes, marks: list[Mark]) -> str:
    """What is wrong with the masked bytes; empty when each is plausible for its reason."""
    now_us = time.time() * 1e6
    for start, end, reason in marks:
        masked = payload[start:end]
        number = int.from_bytes(masked[:8], "little")
        wrong = (
            (reason == "timestamp" and abs(number - now_us) > DAY_US)
            or (reason == "timestamp-future" and not now_us - DAY_US < number < now_us + 366 * DAY_US)
            or (reason in ("uuid", "client-id", "token") and not any(masked))
            or (reason == "address" and not re.fullmatch(rb"[0-9a-fA-F.:\[\]]+:\d+", masked))
            or (reason == "checksum" and not _check_checksum(payload, start, number))
        )
        if wrong:
            return f"bytes {start}..{end} are no plausible {reason}: {masked[:24].hex()}"
    return ""


def difference(step: Step, status: int | None, payload: bytes) -> str:
    """Empty when the answer is the recorded one."""
    if status != step["status"]:
        return f"status {status}, recorded {step['status']}"
    if status is None:
        return ""
    marks = step.get("mask", [])
    shown, recorded = without_masked(payload, marks), bytes.fromhex(step["reply_hex"])
    if shown == recorded:
        return implausible(payload, marks)
    pairs = zip(shown, recorded, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(shown), len(recorded)))
    return (
        f"payload differs at byte {at} (lengths {len(shown)} and {len(recorded)}): "
        f"{shown[at : at + 24].hex() or '-'}, recorded {recorded[at : at + 24].hex() or '-'}"
    )


def _poll_marks(payload: bytes) -> list[Mark]:
    """The ranges of a poll answer that the server draws anew each time: checksums and timestamps."""
    marks: list[Mark] = []
    at = 16
    while at + HEADER_SIZE <= len(payload):
        headers, size = struct.unpack_from("<II", payload, at + 48)
        marks += [[at, at + 8, "checksum"], [at + 32, at + 40, "timestamp"]]
        at += HEADER_SIZE + headers + size
    return marks


def is_better(step: Step, status: int | None, payload: bytes) -> bool:
    """True when the answer is the sane one that the step allows in place of a defect of the reference."""
    better = step.get("better")
    if better is None or "bug" not in step or status != better["status"]:
        return False
    if status is None or "reply_hex" not in better:
        return True
    wanted = bytes.fromhex(better["reply_hex"])
    closed = [mark for mark in step.get("mask", []) if mark[1] is not None]
    return wanted in (
        payload,
        without_masked(payload, closed),
        without_masked(payload, _poll_marks(payload)),
    )


class Connection(Wire):
    """A wire that can also tell silence from an answer."""

    def outcome(self, wait_s: float, timeout_s: float) -> tuple[int | None, bytes]:
        """The next answer, or (None, b"") when nothing comes within `wait_s`."""
        self.socket.settimeout(wait_s)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return None, b""
        finally:
            self.socket.settimeout(timeout_s)
        return self.reply()

    def is_closed_by_server(self, wait_s: float) -> bool:
        self.socket.settimeout(wait_s)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def unread(self) -> bytes:
        self.socket.settimeout(0.001)
        try:
            return self.socket.recv(64)
        except OSError:
            return b""


@dataclass(slots=True)
class Outcome:
    """`differences`: one line each; `copied`: defects answered like the reference; `left_out`: steps not run."""

    steps: int = 0
    improved: int = 0
    copied: list[str] = field(default_factory=list)
    left_out: int = 0
    differences: list[str] = field(default_factory=list)


class Replay:
    """Replays one scenario."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._connections: dict[str, Connection] = {}
        self._dead: set[str] = set()
        self._captures: dict[str, bytes] = {}
        self._outcome = Outcome()

    def run(self, scenario: Scenario) -> Outcome:
        self._connections, self._dead, self._captures, self._outcome = {}, set(), {}, Outcome()
        for number, step in enumerate(scenario.steps, 1):
            name = step.get("conn", "")
            if name in self._dead and step.get("action") != "close":
                self._outcome.left_out += 1
                continue
            self._outcome.steps += 1
            try:
                text = self._step(step)
            except (OSError, ValueError) as problem:
                text = f"{type(problem).__name__}: {problem}"
                self._dead.add(name)
            if text:
                note = step.get("note", step.get("bug", ""))
                request = str(step.get("request_hex") or step.get("action"))[:96]
                self._outcome.differences.append(f"step {number} ({name}) {text} [{note}] request {request}")
        for name, connection in self._connections.items():
            if left := connection.unread():
                self._outcome.differences.append(f"end ({name}): unexpected bytes {left.hex()}")
            connection.close()
        time.sleep(SETTLE_S)
        return self._outcome

    def _step(self, step: Step) -> str:
        name, action = step.get("conn", ""), step.get("action")
        if action == "pause":
            time.sleep(step["ms"] / 1000)
            return ""
        if action == "close":
            if name in self._connections:
                self._connections.pop(name).close()
            self._dead.discard(name)
            return ""
        if name not in self._connections:
            self._connections[name] = Connection(self.address, timeout_s=self.timeout_s)
        if action == "half-close":
            self._connections[name].socket.shutdown(socket.SHUT_WR)
        return "" if action else self._exchange(step, name)

    def _exchange(self, step: Step, name: str) -> str:
        connection, data = self._connections[name], request_bytes(step, self._captures)
        patience_s = EVENTUALLY_S if "eventually_ms" in step else 0.0  # the recorded time was that of an idle machine
        deadline = time.monotonic() + patience_s
        while True:
            if data:  # nothing to send: only the next answer is read, perhaps after a half-close
                connection.send_bytes(data)
            if step["status"] is None and step.get("expect_close"):
                return self._close_only(step, name)
            silent = step["status"] is None or step.get("better", {"status": 0})["status"] is None
            status, payload = connection.outcome(SILENCE_S if silent else self.timeout_s, self.timeout_s)
            text = difference(step, status, payload)
            if not text or time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        capture(step, payload, self._captures)
        better = is_better(step, status, payload)
        if better:
            self._outcome.improved += 1
            text = ""
        elif not text and "better" in step:
            self._outcome.copied.append(f"({name}) {step['bug']}")
        if better or not text:
            return self._closing(step, name, better=better or "bug" in step)
        if status is None and step["status"] is not None:
            self._dead.add(name)
        return text

    def _closing(self, step: Step, name: str, *, better: bool) -> str:
        """After an accepted answer: a close that may or must follow."""
        if better and step.get("better", {}).get("close"):
            if self._connections[name].is_closed_by_server(OPTIONAL_CLOSE_WAIT_S):
                self._connections.pop(name).close()
                self._dead.add(name)
            else:
                self._connections[name].socket.settimeout(self.timeout_s)
        elif step.get("expect_close"):
            connection = self._connections.pop(name)
            closed = connection.is_closed_by_server(CLOSE_WAIT_S)
            connection.close()
            return "" if closed else "the connection stays open"
        return ""

    def _close_only(self, step: Step, name: str) -> str:
        """The server closes without an answer, or gives the better one."""
        try:
            status, payload = self._connections[name].outcome(self.timeout_s, self.timeout_s)
        except OSError:
            self._connections.pop(name).close()
            if "better" in step:
                self._outcome.copied.append(f"({name}) {step['bug']}")
            return ""
        if is_better(step, status, payload):
            self._outcome.improved += 1
            return ""
        return f"status {status}, recorded a close without an answer"


def delete_all(address: str) -> None:
    """Clean-up after a scenario with differences, highest ids first, so that one defect does not spread."""
    with Wire(address) as connection:
        connection.request(LOGIN_USER, str8("iggy") + str8("iggy") + bytes(8))
        for stream in sorted(connection.streams().values(), reverse=True):
            connection.send_bytes(frame(203, identifier(stream)))
            connection.reply()
        if connection.request(GET_STREAMS):
            raise ValueError("streams are left after deleting all of them")
        for user in sorted(_user_ids(connection.request(GET_USERS)), reverse=True)[:-1]:  # all but root
            connection.request(DELETE_USER, identifier(user))
    time.sleep(SETTLE_S)


def _user_ids(users: bytes) -> Iterator[int]:
    at = 0
    while at < len(users):
        yield int.from_bytes(users[at : at + 4], "little")
        at += 14 + users[at + 13]
