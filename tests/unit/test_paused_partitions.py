"""Partitions that are paused: a native send is stored and ends the pause, whichever way it comes; what Liftbridge
stores ends none, and nothing does that is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from shardd.metadata import Metadata, Result
from shardd.metadata.commands import ResumeLiftbridgeStream
from shardd.metadata.liftbridge_runs import is_on
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.runtime.channel import PeerLost
from shardd.service.liftbridge import resumptions
from tests.support.wire import Wire, batch, message, to_partition
from tests.unit.liftbridge_harness import NAMESPACE, LiftbridgeWorkers, liftbridge_workers, publishing

pytestmark = pytest.mark.io_engine

PARTITIONS = 4


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeWorkers]:
    with liftbridge_workers(tmp_path_factory.mktemp("data")) as running:
        yield running


def pause(workers: LiftbridgeWorkers, name: str, *partitions: int, resume_all: bool = False) -> None:
    request = requests.PauseStream(name, partitions, resume_all)
    workers.ask(workers.services.liftbridge_streams.pause_stream(workers.root, request))


def paused(workers: LiftbridgeWorkers, name: str) -> list[int]:
    return [*workers.info(name).paused]


def wait(workers: LiftbridgeWorkers, name: str, expected: list[int]) -> None:
    workers.wait_for_paused(name, *expected)


def send(tcp: Wire, name: str, partition: int, count: int = 1, size: int = 10) -> None:
    tcp.send(NAMESPACE, name, to_partition(partition), [message(b"m" * size)] * count)


@pytest.mark.parametrize(("count", "size"), [(1, 10), (40, 100_000)], ids=["small", "in parts"])
def test_a_native_send_is_stored_and_ends_the_pause_of_its_partition(
    workers: LiftbridgeWorkers, count: int, size: int
) -> None:
    name = f"woken-{count}"
    workers.make(name, PARTITIONS)
    pause(workers, name)
    for shard, partition in ((0, 1), (1, 2)):
        send(workers.connect(shard), name, partition, count, size)
    wait(workers, name, [0, 3])
    tcp = workers.connect()
    assert [len(tcp.read_all(NAMESPACE, name, each)) for each in range(PARTITIONS)] == [0, count, count, 0]
    pause(workers, name, 1, 2)
    send(tcp, name, 1)
    wait(workers, name, [0, 2, 3])
    pause(workers, name, 1, resume_all=True)
    send(tcp, name, 3)
    wait(workers, name, [])


def test_also_when_it_was_opened_anew(workers: LiftbridgeWorkers) -> None:
    workers.make("purged", PARTITIONS)
    pause(workers, "purged")
    tcp = workers.connect()
    tcp.purge_topic(NAMESPACE, "purged")
    send(tcp, "purged", 3)
    wait(workers, "purged", [0, 1, 2])


def test_what_liftbridge_stores_ends_none(workers: LiftbridgeWorkers) -> None:
    """Its door resumes before it publishes; a message by subject that has overtaken a pause does not undo it."""
    stream = workers.make("overtaken", PARTITIONS)
    pause(workers, "overtaken")
    publish = workers.services.liftbridge_publish
    for partition in range(PARTITIONS):
        workers.ask(publish.publish(workers.root, publishing(stream, b"x", partition=partition)))
    send(workers.connect(), "overtaken", 0)
    wait(workers, "overtaken", [1, 2, 3])


def test_what_is_refused_ends_none(workers: LiftbridgeWorkers) -> None:
    workers.make("shut", PARTITIONS)
    streams = workers.services.liftbridge_streams
    workers.ask(streams.set_readonly(workers.root, requests.SetReadonly("shut", (0,), True)))
    pause(workers, "shut")
    tcp = workers.connect()
    where = batch(NAMESPACE, "shut", to_partition(0), [message(b"x")])
    assert tcp.status(Code.SEND_MESSAGES, where) == Status.CANNOT_APPEND_MESSAGE
    send(tcp, "shut", 1)
    wait(workers, "shut", [0, 2, 3])
    workers.ask(streams.set_readonly(workers.root, requests.SetReadonly("shut", (), False)))
    send(tcp, "shut", 0)
    wait(workers, "shut", [2, 3])


def test_what_the_server_writes_into_its_own_streams_ends_none(workers: LiftbridgeWorkers) -> None:
    pause(workers, "__cursors")
    made = publishing(workers.info("__cursors"), b"one")
    tasks = workers.services.liftbridge_tasks
    workers.ask(tasks.publish(requests.InternalPublish("__cursors", 0, made.count, made.batch)))
    assert paused(workers, "__cursors") == [0]


def test_it_is_tried_until_the_metadata_take_it(workers: LiftbridgeWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumptions, "RETRY_S", 0.01)
    workers.make("patient", 1)
    pause(workers, "patient")
    tries = 0

    for shard in (0, 1):
        metadata = workers.context(shard).metadata
        submit = metadata.submit

        async def failing(user: object, command: object, submit: object = submit) -> object:
            nonlocal tries
            if isinstance(command, ResumeLiftbridgeStream):
                tries += 1
                if tries < 4:
                    raise PeerLost("shard 0")
            return await submit(user, command)  # type: ignore[operator]

        monkeypatch.setattr(metadata, "submit", failing)
    send(workers.connect(), "patient", 0)
    wait(workers, "patient", [])
    assert tries == 4 and not is_on(workers.topic_of("patient").liftbridge.paused, 0)


@pytest.mark.parametrize("raised", [False, True], ids=["refused", "raised"])
def test_one_that_is_refused_for_ever_holds_up_no_others_and_is_tried_ever_more_rarely(
    workers: LiftbridgeWorkers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raised: bool
) -> None:
    monkeypatch.setattr(resumptions, "RETRY_S", 0.01)
    monkeypatch.setattr(resumptions, "RETRY_MAX_S", 0.32, raising=False)
    name = f"stuck-{raised}"
    workers.make(name, PARTITIONS)
    pause(workers, name)
    times: list[float] = []
    stuck = True

    for shard in (0, 1):
        metadata = workers.context(shard).metadata
        submit = metadata.submit

        async def refusing(
            user: object, command: object, submit: object = submit, metadata: Metadata = metadata
        ) -> object:
            if isinstance(command, ResumeLiftbridgeStream) and command.partition in (0, 1) and stuck:
                if command.partition == 0:
                    times.append(time.monotonic())
                if raised:
                    raise ValueError("no such command")
                return Result(Status.UNAUTHORIZED, 0, metadata.state)
            return await submit(user, command)  # type: ignore[operator]

        monkeypatch.setattr(metadata, "submit", refusing)
    tcp = workers.connect()
    for partition in range(PARTITIONS):  # each worker has one that is refused, and one behind it
        send(tcp, name, partition)
    wait(workers, name, [0, 1])
    deadline = time.monotonic() + 20
    while len(times) < 8:
        assert time.monotonic() < deadline, times
        time.sleep(0.01)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[4] > 0.15 and gaps[6] > 0.3, gaps  # 0.01, 0.02, 0.04, ... s at least, to RETRY_MAX_S
    assert "paused partitions that have got messages are resumed later" in caplog.text
    stuck = False
    wait(workers, name, [])


def test_ends_are_told(workers: LiftbridgeWorkers) -> None:
    workers.make("ended", PARTITIONS)
    tasks = workers.services.liftbridge_tasks
    send(workers.connect(), "ended", 2, 5)
    assert workers.ask(tasks.partition_ends(requests.PartitionEnds("ended", (2, 0)))) == [5, 0]
    for partitions, status in (((9,), 3007), (tuple(range(1_001)), 3)):
        with pytest.raises(ShardError) as refused:
            workers.ask(tasks.partition_ends(requests.PartitionEnds("ended", partitions)))
        assert refused.value.status == status
    with pytest.raises(ShardError) as refused:
        workers.ask(tasks.partition_ends(requests.PartitionEnds("none", ())))
    assert refused.value.status == Status.TOPIC_ID_NOT_FOUND
