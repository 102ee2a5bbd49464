"""A worker dies while the kernel takes a big batch: what was acknowledged stays, the cut batch leaves no damage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, make_payload
from tests.support.server import Server

ROUNDS = 3
BATCH_COUNT = 200
PAYLOAD_BYTES = 20_000
BATCH_BYTES = BATCH_COUNT * (wire.HEADER_SIZE + PAYLOAD_BYTES)
# Kills when the file has grown by anything but whole batches. A process of its own, so that it runs beside the load.
KILLER = """
import os, sys, time
path, start, batch, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    if (os.path.getsize(path) - start) % batch:
        os.kill(pid, 9)
        sys.exit(0)
sys.exit(1)
"""


def kill_in_a_write(server: Server, producer: load.Producer, log: Path) -> None:
    """Starts the producer, kills the owner within one of its writes, waits until the producer goes on."""
    shards = len(server.worker_pids())
    owner = server.worker_pids()[load.owner_of(0, 0, 0, shards)]
    arguments = [str(log), str(log.stat().st_size), str(BATCH_BYTES), str(owner)]
    killer = subprocess.Popen([sys.executable, "-I", "-S", "-c", KILLER, *arguments])
    try:
        producer.start()
        assert killer.wait(30) == 0, "no write was seen half done"
    finally:
        killer.kill()
        killer.wait()
    acknowledged = producer.acknowledged_batches
    faults.wait_until(lambda: producer.acknowledged_batches > acknowledged, "the producer goes on")
    producer.finish()


def test_acked_messages_survive_a_kill_in_the_middle_of_a_write(tmp_path: Path) -> None:
    server, history = Server(tmp_path), History()
    server.start()
    try:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 1)
            history.attempt((0, 0), make_payload(0, 0), 0)
            connection.send(0, 0, wire.to_partition(0), [wire.message(make_payload(0, 0))])
            history.acknowledge([(0, 0)])
        target = load.Target(server.address, 0, 0, BATCH_COUNT, PAYLOAD_BYTES)
        log = faults.log_path(tmp_path, 0, 0, 0)
        for number in range(1, ROUNDS + 1):
            kill_in_a_write(server, load.Producer(target, history, number, 0), log)
        report = history.judge(load.read_partitions(target, [0]))
        cut = server.log().count("torn tail")
    finally:
        server.stop()
    print(f"{ROUNDS} kills: {report.stored} stored, {report.repeats} repeats, {cut} torn tails")
    report.require_clean()
    assert report.acknowledged >= ROUNDS * BATCH_COUNT
    assert report.repeats + cut > 0, "no kill fell into a write"
