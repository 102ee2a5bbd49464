"""What an engine on io_uring gives to its ring is a step at which `make crash-clean`, `crash-archive` and
`crash-producers` kill; they are not green where none of their kills comes at one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.crash import faults
from tests.crash.clean_kills import Kind, run
from tests.crash.fault_control import AFTER, DIE, FaultControl
from tests.crash.kill_figures import RING_KILLS, Figures, report
from tests.crash.producer_kills import CHECKPOINT, ProducerLane
from tests.support import wire
from tests.support.server import IO_ENGINE_VARIABLE, ONE_SHARD, Server

STEPS = [("sync", DIE, "durable"), ("sync", AFTER, "durable"), ("sync", DIE, "written"), ("read", DIE, "written")]


@pytest.mark.parametrize("engine", ["io_uring", "epoll"])
def test_a_worker_dies_at_an_entry_of_its_ring_and_only_there(engine: str, tmp_path: Path) -> None:
    """Few messages: no segment is sealed, so the only syncs and reads of the log are those of the engine."""
    control = FaultControl(tmp_path)
    settings = ONE_SHARD | {IO_ENGINE_VARIABLE: engine} | control.environment
    with Server(tmp_path / "data", settings) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            for level in ("durable", "written"):
                root.create_topic("s", level, 1)
                root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", level, (("ack", level),)).encode())
        for operation, how, level in STEPS:
            control.arm(operation, ".log$", 1, 5, how=how)
            with wire.connect(server.address) as client, pytest.raises(OSError):
                deadline = time.monotonic() + faults.WAIT_S
                while time.monotonic() < deadline:  # at `written` the sync comes later
                    client.send("s", level, wire.to_partition(0), [wire.message(b"x")])
                    client.poll("s", level, 0, strategy=wire.POLL_FIRST, count=1000)
            _, killed, path = control.disarm()
            assert killed == 1 and path.endswith(".log"), (operation, how)
            assert control.was_on_ring == (engine == "io_uring"), (operation, how)
            faults.wait_until_served(server.address, "s", level, [0])


def test_a_kill_at_an_entry_of_a_ring_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kinds = (Kind("durable", CHECKPOINT),)
    figures = run(tmp_path, 4, seed=6, lanes=1, kinds=kinds, lane_of=ProducerLane, engines=("io_uring",))
    print(figures)
    assert not figures.findings and not figures.cut, (figures.findings, figures.cut)
    assert figures.engines == {"io_uring": 4} and figures.on_ring.total() >= 2


def test_a_run_on_io_uring_that_meets_no_entry_of_a_ring_is_not_green() -> None:
    figures = Figures()
    figures.killed["a step"] = figures.engines["io_uring"] = RING_KILLS
    figures.on_ring["a step"] = 0
    lines, status = report("crash-clean", figures, 0.0, 1)
    assert status == 1 and any("came at an entry of its ring" in line for line in lines)
    figures.findings.clear()
    figures.on_ring["a step"] = 1
    lines, status = report("crash-clean", figures, 0.0, 1)
    assert status == 0 and lines[0].endswith("a step (1 at an entry of a ring)")
