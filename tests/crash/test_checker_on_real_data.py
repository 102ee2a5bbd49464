"""Canaries in the data of a real server: what is planted in its log files must be found by the checker."""

from __future__ import annotations

from pathlib import Path

from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, make_payload
from tests.support.server import Server

LOSS, DUPLICATE, REORDER, FLIP, UNTOUCHED, ROTTEN = range(6)
COUNT = 40


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
    server = Server(tmp_path)
    server.start()
    try:
        history = fill(server)
        target = load.Target(server.address, 0, 0)
        before = load.read_partitions(target, range(6))
        history.judge(before).require_clean()
        server.stop()
        plant(tmp_path)
        server = Server(tmp_path)
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
