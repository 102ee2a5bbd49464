"""Canaries in the data of a real server: what is planted in its log files must be found by the checker."""

from __future__ import annotations

from pathlib import Path

from shardd.log.incarnation import read_incarnation
from shardd.log.offsets_table import OFFSET_CONSUMER, StoredOffset
from shardd.log.stored_offsets import read_table, write_table
from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, make_payload
from tests.support.offset_history import NOTHING, Key, OffsetHistory
from tests.support.server import ONE_SHARD, Server

LOSS, DUPLICATE, REORDER, FLIP, UNTOUCHED, ROTTEN = range(6)
COUNT = 40


CONSUMERS = ("kept", "set back", "removed", "beyond")
STORED = 30


def fill(server: Server) -> History:
    history = History()
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("canary"), "t", 6)
        for partition in range(6):
            for sequence in range(COUNT):
                payload = make_payload(partition, sequence)
                history.attempt((partition, sequence), payload, partition)
                connection.send(0, 0, wire.to_partition(partition), [wire.message(payload)])
                history.acknowledge([(partition, sequence)])
    return history


def flipped(message: wire.Message) -> wire.Message:
    payload = bytearray(message.payload)
    payload[60] ^= 1
    return wire.parse_messages(faults.record(message, message.offset, bytes(payload), message.timestamp_us))[0]


def plant(data: Path) -> None:
    logs = {partition: faults.log_path(data, 0, 0, partition) for partition in range(6)}
    stored = {partition: list(wire.parse_messages(path.read_bytes())) for partition, path in logs.items()}
    assert all(len(messages) == COUNT for messages in stored.values())
    faults.rewrite_log(logs[LOSS], stored[LOSS][:20] + stored[LOSS][21:])
    faults.rewrite_log(logs[DUPLICATE], [*stored[DUPLICATE][:20], stored[DUPLICATE][19], *stored[DUPLICATE][20:]])
    swapped = stored[REORDER]
    swapped[20], swapped[21] = swapped[21], swapped[20]
    faults.rewrite_log(logs[REORDER], swapped)
    faults.rewrite_log(logs[FLIP], [*stored[FLIP][:20], flipped(stored[FLIP][20]), *stored[FLIP][21:]])
    rotten = bytearray(logs[ROTTEN].read_bytes())
    rotten[len(rotten) // 2] ^= 0x10  # the checksum is left as it was
    logs[ROTTEN].write_bytes(bytes(rotten))


def test_planted_faults_in_real_logs_are_caught_and_rotten_bytes_are_never_served(tmp_path: Path) -> None:
    server = Server(tmp_path, ONE_SHARD)
    server.start()
    try:
        history = fill(server)
        target = load.Target(server.address, 0, 0)
        before = load.read_partitions(target, range(6))
        history.judge(before).require_clean()
        server.stop()
        plant(tmp_path)
        server = Server(tmp_path, ONE_SHARD)
        server.start()
        target.address = server.address
        found = load.read_partitions(target, [LOSS, DUPLICATE, REORDER, FLIP, UNTOUCHED])
        rotten = readable_part(server, ROTTEN)
    finally:
        server.stop()
    kinds = {(finding.kind, finding.partition) for finding in history.judge(found).findings}
    assert {("lost", LOSS), ("duplicate", DUPLICATE), ("reordered", REORDER), ("altered", FLIP)} <= kinds
    assert not {kind for kind, partition in kinds if partition == UNTOUCHED}
    assert rotten == before[ROTTEN][: len(rotten)]
    assert len(rotten) == COUNT // 2


def change_offsets(data: Path, changes: dict[str, int | None]) -> None:
    """In the file of a partition that nobody has open; None: removed."""
    directory = faults.log_path(data, 0, 0, 0).parent
    incarnation = read_incarnation(directory)
    table = read_table(directory, incarnation)
    assert table is not None and incarnation is not None
    found = {each.id: each.value for each in table.offsets}
    for name, value in changes.items():
        del found[1 + CONSUMERS.index(name)]
        if value is not None:
            found[1 + CONSUMERS.index(name)] = value
    write_table(directory, incarnation, [StoredOffset(OFFSET_CONSUMER, *each) for each in found.items()])


def stored_offsets(server: Server) -> dict[Key, int]:
    with wire.connect(server.address) as connection:
        found = {name: connection.get_offset(0, 0, 0, 1 + CONSUMERS.index(name)) for name in CONSUMERS}
    return {("t", 0, name): NOTHING if value is None else value for name, value in found.items()}


def test_planted_losses_of_consumer_offsets_are_caught(tmp_path: Path) -> None:
    history = OffsetHistory()
    server = Server(tmp_path, ONE_SHARD)
    server.start()
    try:
        fill(server)
        with wire.connect(server.address) as connection:
            for name in CONSUMERS:
                history.attempt(("t", 0, name), STORED)
                connection.store_offset(0, 0, 0, STORED, 1 + CONSUMERS.index(name))
                history.acknowledge(("t", 0, name), STORED)
        assert not history.judge(stored_offsets(server))
        server.stop()
        change_offsets(tmp_path, {"set back": STORED - 1, "removed": None, "beyond": STORED + 1})
        server = Server(tmp_path, ONE_SHARD)
        server.start()
        found = stored_offsets(server)
    finally:
        server.stop()
    kinds = [(finding.kind, finding.text.split(":")[0]) for finding in history.judge(found)]
    assert kinds == [
        ("offset lost", "topic t, set back"),
        ("offset lost", "topic t, removed"),
        ("offset foreign", "topic t, beyond"),
    ]


def readable_part(server: Server, partition: int) -> list[wire.Message]:
    """Messages before the first one that the server refuses to give out (4027) or does not have."""
    found: list[wire.Message] = []
    with wire.connect(server.address) as connection:
        while len(found) < COUNT:
            try:
                messages = connection.poll(0, 0, partition, value=len(found), count=COUNT).messages
            except wire.StatusError as refusal:
                assert refusal.status == 4027
                break
            if not messages:
                break
            found.extend(messages)
    return found
