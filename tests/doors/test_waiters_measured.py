"""How long a stranger waits beside each crowd of test_waiters_and_places.py: at most twice as long as alone, or 100 ms
(median of three rounds). Measured, so not a part of `make test`: `make test-net-engine` runs it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.doors.door_server import DoorServer, FrameWire
from tests.doors.test_waiters_and_places import (
    ATTACKER,
    CHANGES,
    CROWD,
    PASSWORD,
    WAITERS,
    Begin,
    ask,
    prepare,
)
from tests.support import wire
from tests.support.frozen_disk import FrozenDisk, mounted_disk

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hashes_as_served")]

PARTITIONS: Final = 1_000  # of a topic whose answers are long
ROUNDS: Final = 3
ASKED: Final = 10  # in a round
RATIO_MAX: Final = 2.0
ALWAYS_ALLOWED_S: Final = 0.1


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DoorServer, FrozenDisk]]:
    with (
        mounted_disk(tmp_path_factory.mktemp("measured") / "data") as disk,
        DoorServer(disk.place, doors=("relay",)) as running,
    ):
        prepare(running)
        with wire.connect(running.address) as root:
            root.create_topic("s", "wide", PARTITIONS)
        yield running, disk


def longest_s(relay: FrameWire, stranger: int) -> float:
    """Of some questions, one after the other."""
    longest = 0.0
    for _ in range(ASKED):
        began_s = time.perf_counter()
        assert relay.answer(ask(relay, stranger, "get_streams"))[0] == 0
        longest = max(longest, time.perf_counter() - began_s)
    return longest


def long_answers(relay: FrameWire, handle: int) -> list[int]:
    return [ask(relay, handle, "get_topic", {"stream": "s", "topic": "wide"}) for _ in range(CROWD)]


LONG: Final[dict[str, Begin]] = {"turns of long answers": long_answers}  # they go on beside the stranger


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("name", [*WAITERS, *CHANGES, *LONG])
def test_a_stranger_beside_a_crowd_that_waits_is_served_as_fast_as_alone(
    on_disk: tuple[DoorServer, FrozenDisk], name: str, shard: int
) -> None:
    server, disk = on_disk
    alone, beside = list[float](), list[float]()
    for _ in range(ROUNDS):
        with server.relay(shard) as relay:
            relay.proven()
            stranger = relay.login(relay.open())
            attacker = relay.login(relay.open(ATTACKER), "attacker", PASSWORD)
            alone.append(longest_s(relay, stranger))
            begin = (WAITERS | CHANGES | LONG)[name]
            with disk.frozen() if name in CHANGES else contextlib.nullcontext():
                crowd = set(begin(relay, attacker))
                assert relay.answer(ask(relay, stranger, "get_streams"))[0] == 0  # it comes behind the crowd
                beside.append(longest_s(relay, stranger))
                assert name in LONG or len(crowd.intersection(relay.answered)) < CROWD // 4, "the crowd does not wait"
    control_s, found_s = statistics.median(alone), statistics.median(beside)
    print(f"{name} at shard {shard}: {found_s * 1000:.1f} ms beside the crowd, {control_s * 1000:.1f} ms alone")
    assert found_s <= max(RATIO_MAX * control_s, ALWAYS_ALLOWED_S)
