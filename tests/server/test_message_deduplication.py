"""`message_deduplication` on a real server: whatever is sent again is answered OK and stored once, within a window that
outlives the death of a worker, restarts, compression and retention, and that a purge forgets."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.server.test_retention import create_topic, root
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wide import crossed
from tests.support.wire import Wire

__all__ = ["root"]  # a fixture
PARTITIONS = 8
SEGMENT_BYTES = 64 << 10
TIMEOUT_S = 90.0
SEED = 20261123
INVALID_CONFIGURATION = 2
ENV = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_ENABLED": "true",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_MAX_ENTRIES": "5000",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_EXPIRY": "1 h",
}
SERVER: Final = Serving(env=ENV)


def identified(number: int, payload: bytes | None = None) -> bytes:
    body = b"%d" % number if payload is None else payload
    return wire.message(body, message_id=number.to_bytes(16, "little"))


def send(root: Wire, numbers: Sequence[int], partition: int = 0) -> None:
    root.send("s", "t", wire.to_partition(partition), [identified(number) for number in numbers])


def stored(root: Wire, partition: int = 0, first: int = 0) -> list[int]:
    """Payloads of all messages, whose offsets must be dense."""
    found: list[int] = []
    while True:
        answer = root.poll("s", "t", partition, value=first + len(found), count=1000)
        if not answer.messages:
            return found
        for message in answer.messages:
            assert message.offset == first + len(found)
            found.append(int(message.payload))


def change(root: Wire, **values: str) -> int:
    request = SetTopicSettings("s", "t", tuple(values.items()))
    return root.status(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())


def restarted(server: Server, how: signal.Signals) -> None:
    if how is signal.SIGKILL:
        server.kill_supervisor()
    else:
        server.stop()
    server.start()


class Model:
    """What a list says: the last `entries_max` messages have known ids."""

    def __init__(self, entries_max: int) -> None:
        self.log: list[int] = []
        self._known: OrderedDict[int, None] = OrderedDict()
        self._entries_max = entries_max

    def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._known:
                continue
            self._known[number] = None
            if len(self._known) > self._entries_max:
                self._known.popitem(last=False)
            self.log.append(number)


@pytest.mark.parametrize("entries_max", [1, 7, 64, 200])
def test_any_sends_with_repeats_leave_what_a_list_says(root: Wire, entries_max: int) -> None:
    create_topic(root)
    assert change(root, message_deduplication_max_entries=str(entries_max)) == 0
    chance, model = random.Random(SEED + entries_max), Model(entries_max)
    for _ in range(150):
        numbers = [chance.randint(1, 3 * entries_max + 5) for _ in range(chance.randint(1, 40))]
        send(root, numbers)
        model.send(numbers)
    assert stored(root) == model.log


def test_every_partition_of_every_shard_stores_each_message_once(root: Wire) -> None:
    create_topic(root, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        for numbers in ([1, 2, 3], [1, 2, 3], [3, 4, 4, 2, 5]):
            send(root, numbers, partition)
        assert stored(root, partition) == [1, 2, 3, 4, 5]


def test_messages_without_an_id_are_never_repeats(root: Wire) -> None:
    create_topic(root)
    for _ in range(3):
        root.send("s", "t", wire.to_partition(0), [wire.message(b"7"), wire.message(b"7")])
    assert stored(root) == [7] * 6


def test_a_large_batch_leaves_its_repeats(root: Wire) -> None:
    create_topic(root)
    send(root, [3, 5])
    filling = b" " * 30_000
    numbers = [*range(1, 200), 4, 5]
    batch = [identified(number, b"%d" % number + filling) for number in numbers]
    for _ in range(2):
        root.send("s", "t", wire.to_partition(0), batch)
    assert stored(root) == [3, 5, *(n for n in range(1, 200) if n not in (3, 5))]


def test_what_has_expired_is_stored_again(root: Wire) -> None:
    create_topic(root)
    assert change(root, message_deduplication_expiry="1 s") == 0
    send(root, [1])
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(stored(root)) == 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
        send(root, [1])


def test_a_topic_says_whether_and_a_purge_forgets(root: Wire) -> None:
    create_topic(root)
    assert change(root, message_deduplication="off") == 0
    send(root, [1, 1])
    assert change(root, message_deduplication="on") == 0
    send(root, [2, 2])
    assert stored(root) == [1, 1, 2]
    root.request(Code.PURGE_TOPIC, wire.identifier("s") + wire.identifier("t"))
    send(root, [2, 2])
    assert stored(root) == [2]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("message_deduplication", "yes"),
        ("message_deduplication_max_entries", "0"),
        ("message_deduplication_max_entries", "1000001"),
        ("message_deduplication_expiry", "999 ms"),
        ("message_deduplication_expiry", "25 h"),
    ],
)
def test_what_a_setting_does_not_take_is_refused(root: Wire, key: str, value: str) -> None:
    create_topic(root)
    assert change(root, **{key: value}) == INVALID_CONFIGURATION


@pytest.mark.parametrize(("ack", "how"), crossed(["written", "durable"], [signal.SIGKILL, signal.SIGTERM]))
def test_a_server_that_died_knows_what_it_had_stored(tmp_path: Path, ack: str, how: signal.Signals) -> None:
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, partitions=PARTITIONS)
            assert change(root, ack=ack) == 0
            for partition in range(PARTITIONS):
                send(root, range(1, 101), partition)
        restarted(server, how)
        with wire.connect(server.address) as root:
            for partition in range(PARTITIONS):
                send(root, range(51, 151), partition)
                assert stored(root, partition) == list(range(1, 151))


def test_who_sends_all_twice_to_workers_that_die_stores_each_message_once(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
        for first in range(1, 601, 20):
            for _ in range(2):
                if chance.random() < 0.25:
                    os.kill(chance.choice(list(server.running_workers().values())), signal.SIGKILL)
                until_taken(server, range(first, first + 20))
        with wire.connect(server.address) as root:
            assert stored(root) == list(range(1, 601))


def until_taken(server: Server, numbers: Sequence[int]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with wire.connect(server.address) as root:
                send(root, numbers)
                return
        except (OSError, EOFError, wire.StatusError):
            assert time.monotonic() < deadline_s, server.log()
            time.sleep(0.05)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_window_outlives_retention_and_compression(tmp_path: Path, codec: str) -> None:
    filling = b" " * 900
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
            assert change(root, compression=codec, retention="on", partition_messages_max="50") == 0
            for first in range(1, 501, 50):
                batch = [identified(n, b"%d" % n + filling) for n in range(first, first + 50)]
                root.send("s", "t", wire.to_partition(0), batch)
            ends = root.poll("s", "t", 0, value=0, count=1).current_offset
            wait_for_start(root)
        for how in (signal.SIGKILL, signal.SIGTERM):
            restarted(server, how)
            with wire.connect(server.address) as root:
                send(root, range(1, 501))
                assert root.poll("s", "t", 0, value=0, count=1).current_offset == ends


def wait_for_start(root: Wire) -> None:
    """Until the limit has moved the start of the log."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        first = root.poll("s", "t", 0, value=0, count=1).messages
        if first and first[0].offset > 0:
            return
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_start_reads_the_tail_alone(tmp_path: Path) -> None:
    """Ids before the window are not known after a restart either."""
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
            assert change(root, message_deduplication_max_entries="10") == 0
            send(root, range(1, 31))
        restarted(server, signal.SIGTERM)
        with wire.connect(server.address) as root:
            send(root, [21, 20])
            assert stored(root) == [*range(1, 31), 20]
