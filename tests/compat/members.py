"""One group whose members are released clients of several generations: everything is served once, all are served."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from typing import Final

from shardd.protocol.codes import Code
from tests.compat.rust_client import command_of
from tests.support import wire
from tests.support.wire import Wire

STREAM, TOPIC, GROUP = "all-generations", "t", "readers"
PARTITIONS_EACH: Final = 2
MESSAGES: Final = 400
BATCH: Final = 4
PATIENCE_S: Final = 60.0
QUIET_S: Final = 2.0  # in which what is served twice would come


class Member:
    """A process; `got`: the payloads that it has printed."""

    def __init__(self, client: str, python: str, address: str) -> None:
        self.client = client
        self.got: list[str] = []
        command = command_of("member", client, python, [address, STREAM, TOPIC, GROUP])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() != "begins":
                self.got.append(line.strip())

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> str:
        """What it said of an error."""
        try:
            _, errors = self._process.communicate(timeout=20)
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            return ""
        return errors[-60:] if self._process.returncode not in (0, -6) else ""


def group_of_all(root: Wire, address: str, pythons: dict[str, str]) -> dict[str, str]:
    """By client: "" when it was a member and was served, otherwise what went wrong."""
    root.create_stream(STREAM)
    root.create_topic(STREAM, TOPIC, PARTITIONS_EACH * len(pythons))
    root.request(Code.CREATE_CONSUMER_GROUP, wire.identifier(STREAM) + wire.identifier(TOPIC) + wire.str8(GROUP))
    members = [Member(client, python, address) for client, python in pythons.items()]
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not _all_have_partitions(root, len(members)):
        time.sleep(0.05)
    sent = [str(number) for number in range(MESSAGES)]
    for first in range(0, MESSAGES, BATCH):
        texts = sent[first : first + BATCH]
        root.send(STREAM, TOPIC, wire.balanced(), [wire.message(each.encode()) for each in texts])
    while time.monotonic() < deadline and sum(len(member.got) for member in members) < MESSAGES:
        time.sleep(0.05)
    time.sleep(QUIET_S)
    errors = {member.client: member.end() for member in members}
    served = Counter(text for member in members for text in member.got)
    if served == Counter(sent):
        return {member.client: "" if member.got else f"served nothing {errors[member.client]}" for member in members}
    twice = [text for text, count in served.items() if count > 1]
    said = f"{len(set(sent) - set(served))} messages are missing, {len(twice)} came twice"
    return {member.client: f"{said}; {errors[member.client]}" for member in members}


def _all_have_partitions(root: Wire, count: int) -> bool:
    members = root.group_members(STREAM, TOPIC, GROUP)
    return len(members) == count and all(members.values())
