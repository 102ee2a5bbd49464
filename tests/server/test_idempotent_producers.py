"""Producers on a real server: each batch is stored once, however often it is sent, and whoever cannot be answered for
sure is told (docs/extensions.md#producers)."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from tests.server.test_message_deduplication import change, identified, restarted, stored
from tests.server.test_retention import create_topic, root
from tests.server.test_revocation import EVERYTHING, create_user, delete_user
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wire import Wire

__all__ = ["root"]  # a fixture
PARTITIONS = 8
SEED = 20261123
ENV = {"SHARDD_SYSTEM_SEGMENT_SIZE": str(64 << 10), "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms"}
TIMEOUT_S = 90.0
SERVER: Final = Serving(env=ENV)


def init(root: Wire, producer: int = 0, epoch: int = 0, *, renew: bool = False) -> ProducerEpoch:
    answer = root.request(ExtensionCode.INIT_PRODUCER, InitProducer(producer, epoch, renew).encode())
    return ProducerEpoch.read(Reader(answer))


def payload_of(who: ProducerEpoch, sequence: int, numbers: list[int], partition: int = 0) -> bytes:
    send = wire.batch("s", "t", wire.to_partition(partition), [identified(number) for number in numbers])
    return send_once_head(who.producer, who.epoch, sequence) + send


def once(root: Wire, who: ProducerEpoch, sequence: int, numbers: list[int], partition: int = 0) -> Produced:
    answer = root.request(ExtensionCode.SEND_ONCE, payload_of(who, sequence, numbers, partition))
    return Produced.read(Reader(answer))


def test_a_batch_that_is_sent_again_is_stored_once_and_its_place_is_told(root: Wire) -> None:
    create_topic(root)
    who = init(root)
    for sequence in range(40):
        assert once(root, who, sequence, [3 * sequence, 3 * sequence + 1, 3 * sequence + 2]) == Produced(
            ProducedKind.STORED, 3, 3 * sequence
        )
    for sequence in range(40 - 32, 40):
        assert once(root, who, sequence, [7]) == Produced(ProducedKind.DUPLICATE, 3, 3 * sequence)
    assert once(root, who, 50, [7]) == Produced(ProducedKind.GAP, 0, 40)
    assert stored(root) == list(range(120))


def test_a_new_epoch_ends_the_one_before_everywhere_at_once(root: Wire, server: Server) -> None:
    create_topic(root, partitions=PARTITIONS)
    who = init(root)
    for partition in range(PARTITIONS):
        assert once(root, who, 0, [1], partition).kind is ProducedKind.STORED
    later = init(root, who.producer)
    assert (later.producer, later.epoch) == (who.producer, who.epoch + 1)
    with wire.connect(server.address) as other:
        for partition in range(PARTITIONS):
            assert once(other, who, 1, [2], partition) == Produced(ProducedKind.STALE_EPOCH, later.epoch, 0)
            assert once(other, later, 0, [3], partition).kind is ProducedKind.STORED
    assert init(root, later.producer, later.epoch, renew=True).epoch == later.epoch
    assert root.status(ExtensionCode.INIT_PRODUCER, InitProducer(who.producer, who.epoch, True).encode()) == 30
    for partition in range(PARTITIONS):
        assert stored(root, partition) == [1, 3]


def test_who_is_not_known_is_never_accepted(root: Wire, server: Server) -> None:
    create_topic(root)
    who = init(root)
    unknown = Produced(ProducedKind.UNKNOWN_PRODUCER, 0, 0)
    assert once(root, ProducerEpoch(who.producer + 1000, 0, 0), 0, [1]) == unknown
    assert once(root, ProducerEpoch(who.producer, who.epoch + 1, 0), 0, [1]) == unknown
    assert once(root, who, 1, [1]) == unknown, "the partition has nothing of it"
    create_user(root, "alice", EVERYTHING)
    with wire.connect(server.address) as alice:
        alice.login("alice", "secret")
        assert once(alice, who, 0, [1]) == unknown, "it is another user's"
        assert alice.status(ExtensionCode.INIT_PRODUCER, InitProducer(who.producer).encode()) == 20
        hers = init(alice)
    delete_user(root, "alice")
    assert once(root, hers, 0, [1]) == unknown
    assert stored(root) == []


def test_it_is_refused_where_a_kill_may_lose_what_was_acknowledged(root: Wire) -> None:
    create_topic(root)
    who = init(root)
    assert change(root, ack="memory") == 0
    assert once(root, who, 0, [1]).kind is ProducedKind.REFUSED_AT_MEMORY
    assert change(root, ack="durable") == 0
    assert once(root, who, 0, [1]) == Produced(ProducedKind.STORED, 1, 0)
    assert once(root, who, 0, [1]) == Produced(ProducedKind.DUPLICATE, 1, 0)


def test_what_is_no_such_request_is_refused(root: Wire) -> None:
    create_topic(root)
    who = init(root)
    good = payload_of(who, 0, [1])
    assert root.status(ExtensionCode.SEND_ONCE, good[:19]) == 3
    assert root.status(ExtensionCode.SEND_ONCE, bytes(20) + good[20:]) == 3
    balanced = wire.batch("s", "t", wire.balanced(), [identified(1)])
    assert root.status(ExtensionCode.SEND_ONCE, good[:20] + balanced) == 3
    large = wire.batch("s", "t", wire.to_partition(0), [wire.message(bytes(2 << 20))])
    assert root.status(ExtensionCode.SEND_ONCE, good[:20] + large) == 4036
    assert root.status(Code.PING) == 0
    assert stored(root) == []


def test_repeats_by_id_inside_a_new_batch_leave_it_and_the_batch_still_counts(root: Wire) -> None:
    create_topic(root)
    assert change(root, message_deduplication="on", message_deduplication_expiry="1 h") == 0
    who = init(root)
    assert once(root, who, 0, [1, 2]) == Produced(ProducedKind.STORED, 2, 0)
    assert once(root, who, 1, [2, 1]) == Produced(ProducedKind.STORED, 0, 2)
    assert once(root, who, 2, [3]) == Produced(ProducedKind.STORED, 1, 2)
    assert once(root, who, 1, [9]).kind is ProducedKind.DUPLICATE
    assert stored(root) == [1, 2, 3]


@pytest.mark.parametrize("level", ["written", "durable"])
def test_kills_and_restarts_between_any_sends_leave_each_batch_once(tmp_path: Path, level: str) -> None:
    """The answer of every batch may have been lost: the last one of each partition is sent again, over kills of the
    whole server, and the next ones go on."""
    chance, logs, sequences = random.Random(SEED), [list[int]() for _ in range(PARTITIONS)], [0] * PARTITIONS
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, partitions=PARTITIONS)
            assert change(root, ack=level) == 0
            who = init(root)
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            last: dict[int, tuple[list[int], Produced]] = {}
            with wire.connect(server.address) as root:
                for _ in range(60):
                    partition = chance.randrange(PARTITIONS)
                    numbers = [chance.randrange(1 << 40) for _ in range(chance.randint(1, 30))]
                    answer = once(root, who, sequences[partition], numbers, partition)
                    assert answer == Produced(ProducedKind.STORED, len(numbers), len(logs[partition]))
                    last[partition] = numbers, answer
                    logs[partition] += numbers
                    sequences[partition] += 1
                    if chance.random() < 0.2:
                        root.send("s", "t", wire.to_partition(partition), [identified(1)])
                        logs[partition].append(1)
            restarted(server, how)
            with wire.connect(server.address) as root:
                for partition, (numbers, answer) in last.items():
                    for _ in range(chance.randint(1, 3)):
                        again = once(root, who, sequences[partition] - 1, numbers, partition)
                        assert again == Produced(ProducedKind.DUPLICATE, len(numbers), answer.first)
                    gap = once(root, who, sequences[partition] + 1, [1], partition)
                    assert gap == Produced(ProducedKind.GAP, 0, sequences[partition])
        with wire.connect(server.address) as root:
            assert [stored(root, partition) for partition in range(PARTITIONS)] == logs


def test_what_was_sent_while_workers_died_is_stored_once(tmp_path: Path) -> None:
    """Who gets no answer connects again and sends the same batch, until it is told that it is there."""
    chance, numbers = random.Random(SEED), list(range(1, 601))
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
            who = init(root)
        for sequence in range(60):
            if sequence % 10 == 5:
                os.kill(chance.choice(list(server.running_workers().values())), signal.SIGKILL)
            until_stored(server, who, sequence, numbers[10 * sequence : 10 * sequence + 10])
        with wire.connect(server.address) as root:
            assert stored(root) == numbers


def until_stored(server: Server, who: ProducerEpoch, sequence: int, numbers: list[int]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with wire.connect(server.address) as root:
                answer = once(root, who, sequence, numbers)
                assert answer.kind in (ProducedKind.STORED, ProducedKind.DUPLICATE), answer
                return
        except (OSError, wire.StatusError):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
