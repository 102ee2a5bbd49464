"""The level of a topic changes under load, and processes are killed: nothing that was acknowledged gets lost, but for
what `memory` alone has when it happens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History
from tests.support.server import Server

PARTITIONS: Final = 8  # 4, 5 and 7 on shard 0, the others on shard 1
LOADED: Final = (0, 1, 4, 5)
QUIET: Final = (2, 7)  # have a message before each change and nothing behind it
# all six changes; a kill comes only where every acknowledged message is safe from it
STEPS: Final = (
    ("memory", None), ("written", "worker"), ("durable", "all"), ("written", "worker"), ("memory", None),
    ("durable", "worker"), ("memory", None), ("written", "all"),
)  # fmt: skip
SETTINGS: Final = {
    "SHARDD_MESSAGE_SAVER_ENABLED": "false",  # the change itself has to save
    "SHARDD_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "100000",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}


def change(address: str, level: str, message: bytes) -> None:
    """Sends the message to the quiet partitions, then changes the level."""
    with wire.connect(address) as connection:
        for partition in QUIET:
            connection.send("load", "load", wire.to_partition(partition), [wire.message(message)])
        request = SetTopicSettings("load", "load", (("ack", level),))
        connection.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())


def wait_for_progress(producers: list[load.Producer], batches: int) -> None:
    before = [producer.acknowledged_batches for producer in producers]
    faults.wait_until(
        lambda: all(
            each.acknowledged_batches >= old + batches or each.failure is not None
            for each, old in zip(producers, before, strict=True)
        ),
        "every producer is answered again",
        20.0,
    )


def test_no_change_under_load_loses_what_was_acknowledged(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SETTINGS)
    server.start()
    with wire.connect(server.address) as root:
        root.create_topic(root.create_stream("load"), "load", PARTITIONS)
    target, history = load.Target(server.address, "load", "load", batch_count=3), History()
    producers = [load.Producer(target, history, number, number, pause_s=0.02) for number in LOADED]
    try:
        for producer in producers:
            producer.start()
        for step, (level, victim) in enumerate(STEPS):
            wait_for_progress(producers, 3)
            load.wait_until_answered(target, QUIET)  # a worker that was killed is back
            change(server.address, level, b"%d" % step)
            if victim == "worker":
                faults.kill9(server.worker_pids()[step // 2 % 2])
            elif victim == "all":
                faults.kill_all(server)
                server.start()
                target.address = server.address
        wait_for_progress(producers, 3)
        for producer in producers:
            producer.finish()
        report = history.judge(load.read_partitions(target, list(LOADED)))
        report.require_clean()
        for messages in load.read_partitions(target, list(QUIET)).values():
            assert [each.payload for each in messages] == [b"%d" % step for step in range(len(STEPS))]
        assert report.acknowledged > 3 * 3 * len(LOADED) * len(STEPS)
        assert sum(producer.errors for producer in producers) > 0, "the kills did not hit the load"
    finally:
        for producer in producers:
            producer.stopping.set()
        server.stop()


def test_a_kill_at_memory_loses_what_came_after_the_change_and_nothing_before(tmp_path: Path) -> None:
    """The canary of the test above: `memory` really is in force, also after the start that follows the kill."""
    server = Server(tmp_path / "data", SETTINGS | {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"})
    server.start()
    with wire.connect(server.address) as root:
        root.create_topic(root.create_stream("load"), "load", PARTITIONS)
        for level, payload in (("durable", b"first"), ("memory", b"second")):
            change(server.address, level, b"before")
            for partition in LOADED:
                root.send("load", "load", wire.to_partition(partition), [wire.message(payload)])
    target = load.Target(server.address, "load", "load")
    for start in range(2):
        faults.kill_all(server)
        server.start()
        target.address = server.address
        found = load.read_partitions(target, list(LOADED))
        assert {number: [each.payload for each in messages] for number, messages in found.items()} == {
            number: [b"first"] for number in LOADED
        }
        if start == 0:
            with wire.connect(server.address) as root:
                root.send("load", "load", wire.to_partition(0), [wire.message(b"third")])
    server.stop()
