"""A full disk: a typed status, reads and metadata go on, sends resume by themselves when there is room, every start
works, nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, make_payload
from tests.support.server import Server
from tests.support.wide import crossed

DISK_SIZE = "24m"
INODES = 640
BALLAST_BYTES = 6 * 2**20
PAYLOAD_BYTES = 10_000
BATCH = 10
PARTITIONS = 3
PRODUCERS = 3
DISK_STATUS = 10006  # cannot write to file (docs/protocol/statuses.md)
REQUESTS_MAX = 1000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted_disk(tmp_path, f"size={DISK_SIZE}")


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    yield from mounted_disk(tmp_path, f"size=200m,nr_inodes={INODES}")


def mounted_disk(tmp_path: Path, options: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Sender:
    """One connection that writes numbered batches to all partitions in turn and keeps the history."""

    def __init__(self, connection: wire.Wire, history: History, first_partition: int = 0) -> None:
        self.connection = connection
        self.history = history
        self.first_partition = first_partition
        self.sequence = 0

    def send(self) -> int:
        """The status of one more batch."""
        partition = self.first_partition + self.sequence // BATCH % PARTITIONS
        identities = [(partition, self.sequence + n) for n in range(BATCH)]
        payloads = [make_payload(*identity, size=PAYLOAD_BYTES) for identity in identities]
        for identity, payload in zip(identities, payloads, strict=True):
            self.history.attempt(identity, payload, partition)
        messages = [wire.message(payload) for payload in payloads]
        batch = wire.batch(0, 0, wire.to_partition(partition), messages)
        status = self.connection.status(wire.SEND_MESSAGES, batch)
        if status == 0:
            self.history.acknowledge(identities)
        self.sequence += BATCH
        return status

    def fill(self) -> list[int]:
        """Sends until each partition was refused some times; the refusals."""
        refusals: list[int] = []
        for _ in range(REQUESTS_MAX):
            status = self.send()
            if status != 0:
                refusals.append(status)
            if len(refusals) >= 4 * PARTITIONS:
                return refusals
        raise AssertionError(f"the disk is not full after {REQUESTS_MAX} requests")


def judge(server: Server, history: History) -> None:
    target = load.Target(server.address, 0, 0)
    report = history.judge(load.read_partitions(target, range(PARTITIONS)))
    report.require_clean()
    assert report.unacknowledged == 0, "a refused batch is in the log"


def free_bytes(disk: Path) -> int:
    usage = os.statvfs(disk)
    return usage.f_bavail * usage.f_frsize


def fill_to_the_last_byte(disk: Path) -> Path:
    """As another program on the same disk may do it. Bounded by the disk's size."""
    path = disk / "other program"
    with path.open("ab", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    assert free_bytes(disk) == 0
    return path


def wait_until_sends_are_taken(sender: Sender, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while sender.send() != 0:
        assert time.monotonic() < deadline, "sends are refused although there is room"
        time.sleep(0.05)


def test_sends_are_refused_before_the_disk_is_full_and_resume_by_themselves(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    history = History()
    with Server(small_disk) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("full"), "t", PARTITIONS)
        sender = Sender(connection, history)
        assert sender.send() == 0
        workers = list(server.worker_pids())
        assert set(sender.fill()) == {DISK_STATUS}
        assert free_bytes(small_disk) > 2**20, "the room for everything else is kept"
        assert "sends are refused: only" in server.log()
        judge(server, history)
        connection.ping()
        assert connection.status(wire.CREATE_STREAM, wire.str8("more")) == 0
        assert connection.status(wire.DELETE_STREAM, wire.identifier("more")) == 0
        ballast.unlink()
        wait_until_sends_are_taken(sender)
        for _ in range(2 * PARTITIONS):
            assert sender.send() == 0
        assert "sends are taken again" in server.log()
        assert list(server.worker_pids()) == workers
        judge(server, history)


def send_once(connection: wire.Wire, who: ProducerEpoch, sequence: int) -> tuple[int, Produced | None]:
    """Status, answer. The same batch whenever it is asked for."""
    payloads = [make_payload(0, sequence * BATCH + n, size=PAYLOAD_BYTES) for n in range(BATCH)]
    batch = wire.batch(0, 0, wire.to_partition(0), [wire.message(payload) for payload in payloads])
    request = send_once_head(who.producer, who.epoch, sequence) + batch
    try:
        return 0, Produced.read(Reader(connection.request(ExtensionCode.SEND_ONCE, request)))
    except wire.StatusError as refusal:
        return refusal.status, None


@pytest.mark.parametrize(("level", "to_the_last_byte"), crossed(["written", "durable"], [True, False]))
def test_a_producer_that_was_refused_for_want_of_room_goes_on_with_the_same_batch(
    small_disk: Path, level: str, *, to_the_last_byte: bool
) -> None:
    """Nothing of what was refused counts: neither before the disk is full nor when a write itself fails."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    environment = {"SHARDD_SYSTEM_PARTITION_ACK": level}
    with Server(small_disk / "data", environment) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("full"), "t", 1)
        who = ProducerEpoch.read(Reader(connection.request(ExtensionCode.INIT_PRODUCER, InitProducer().encode())))
        stored = 0
        while stored < 3:
            assert send_once(connection, who, stored)[0] == 0
            stored += 1
        other = fill_to_the_last_byte(small_disk) if to_the_last_byte else None
        refusals: list[int] = []
        while len(refusals) < 20 and stored < REQUESTS_MAX:
            status, answer = send_once(connection, who, stored)
            if status == 0:
                assert answer == Produced(ProducedKind.STORED, BATCH, BATCH * stored)
                stored += 1
            else:
                refusals.append(status)
        assert set(refusals) == {DISK_STATUS}
        if other is not None:
            other.unlink()
        ballast.unlink()
        deadline = time.monotonic() + 60.0
        while (found := send_once(connection, who, stored))[0] != 0:
            assert time.monotonic() < deadline, "a batch is refused although there is room"
            time.sleep(0.05)
        assert found[1] == Produced(ProducedKind.STORED, BATCH, BATCH * stored)
        assert send_once(connection, who, stored)[1] == Produced(ProducedKind.DUPLICATE, BATCH, BATCH * stored)
        os.kill(next(iter(server.running_workers().values())), signal.SIGKILL)
    with Server(small_disk / "data", environment) as server, wire.connect(server.address) as connection:
        assert send_once(connection, who, stored)[1] == Produced(ProducedKind.DUPLICATE, BATCH, BATCH * stored)
        assert send_once(connection, who, stored + 1)[1] == Produced(ProducedKind.STORED, BATCH, BATCH * (stored + 1))
        messages = connection.read_all(0, 0, 0)
        expected = [make_payload(0, number, size=PAYLOAD_BYTES) for number in range(BATCH * (stored + 2))]
        assert [message.payload for message in messages] == expected


def free_inodes(disk: Path) -> int:
    return os.statvfs(disk).f_favail


def test_sends_are_refused_before_the_inodes_are_used_up_and_resume_by_themselves(few_inodes: Path) -> None:
    """Stored offsets take none: one file for a partition, however many consumers."""
    history = History()
    with Server(few_inodes) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("full"), "t", PARTITIONS)
        sender = Sender(connection, history)
        while sender.sequence < 2 * BATCH * PARTITIONS:
            assert sender.send() == 0
        connection.store_offset(0, 0, 0, 1, 1)
        others = few_inodes / "other program"
        others.mkdir()
        while free_inodes(few_inodes) > INODES // 32:
            (others / str(free_inodes(few_inodes))).touch()
        faults.wait_until(lambda: sender.send() == DISK_STATUS, "sends are taken without inodes")
        assert "inodes are free" in server.log()
        before = free_inodes(few_inodes)
        for consumer in range(1, 400):
            connection.store_offset(0, 0, 0, 1, consumer)
        assert free_inodes(few_inodes) == before
        judge(server, history)
        for path in others.iterdir():
            path.unlink()
        wait_until_sends_are_taken(sender)
        judge(server, history)


@pytest.mark.parametrize("level", ["written", "durable"])
def test_producers_to_the_end_of_the_disk_lose_nothing(small_disk: Path, level: str) -> None:
    """Several producers at once, without a threshold: the disk itself refuses."""
    server = Server(small_disk, {"SHARDD_SYSTEM_DISK_RESERVE": "0 B", "SHARDD_SYSTEM_PARTITION_ACK": level})
    with server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("full"), "t", PARTITIONS * PRODUCERS)
        histories = [History() for _ in range(PRODUCERS)]
        failures: list[BaseException] = []

        def produce(number: int) -> None:
            try:
                with wire.connect(server.address) as connection:
                    refusals = Sender(connection, histories[number], number * PARTITIONS).fill()
                assert set(refusals) == {DISK_STATUS}
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures, failures
        for round_number in range(2):  # as it is, then after a kill and a start on the full disk
            target = load.Target(server.address, 0, 0)
            found = load.read_partitions(target, range(PARTITIONS * PRODUCERS))
            for number, history in enumerate(histories):
                own = range(number * PARTITIONS, (number + 1) * PARTITIONS)
                report = history.judge({partition: found[partition] for partition in own})
                report.require_clean()
                assert report.unacknowledged == 0
            if round_number == 0:
                server.kill_supervisor()
                server.start()
                faults.wait_until_served(server.address, 0, 0, range(PARTITIONS * PRODUCERS))


def test_metadata_kills_and_starts_on_a_disk_without_a_free_byte(small_disk: Path) -> None:
    history = History()
    server = Server(small_disk)
    server.start()
    try:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("full"), "t", PARTITIONS)
            connection.create_topic(connection.create_stream("victim"), "t", PARTITIONS)
            sender = Sender(connection, history)
            for _ in range(4 * PARTITIONS):
                assert sender.send() == 0
            other = fill_to_the_last_byte(small_disk)
            assert connection.status(wire.CREATE_STREAM, wire.str8("on a full disk")) == 0
            assert connection.status(wire.DELETE_STREAM, wire.identifier("victim")) == 0
            fill_to_the_last_byte(small_disk)  # what is left of the reserve
            faults.wait_until(lambda: sender.send() == DISK_STATUS, "sends are taken without room")
            judge(server, history)
        for shard in range(len(server.worker_pids())):
            os.kill(server.worker_pids()[shard], signal.SIGKILL)
            faults.wait_until_served(server.address, 0, 0, range(PARTITIONS))
        judge(server, history)
        server.kill_supervisor()
        server.start()
        faults.wait_until_served(server.address, 0, 0, range(PARTITIONS))
        judge(server, history)
        with wire.connect(server.address) as connection:
            assert {"full", "on a full disk"} <= set(connection.streams())
            assert "victim" not in connection.streams()
            sender.connection = connection
            assert sender.send() == DISK_STATUS
            other.unlink()
            wait_until_sends_are_taken(sender)
            for _ in range(2 * PARTITIONS):
                assert sender.send() == 0
        faults.wait_until((small_disk / "state.reserve").exists, "the reserve is not made again")
        judge(server, history)
    finally:
        server.stop()


@pytest.mark.parametrize("reserve", ["64 MiB", pytest.param("0 B", marks=pytest.mark.slow)])
def test_deleting_on_a_full_disk_gives_its_room_back_at_once(small_disk: Path, reserve: str) -> None:
    """Of a topic whose partition is on another shard than the thread that empties the trash."""
    settings = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2", "SHARDD_SYSTEM_DISK_RESERVE": reserve}
    with Server(small_disk, settings) as server, wire.connect(server.address) as connection:
        stream = next(number for number in range(100) if load.owner_of(number, 0, 0, 2) == 1)
        for number in range(stream + 1):
            connection.create_stream(f"s{number}")
        connection.create_topic(stream, "old", 1)
        connection.create_topic(stream, "new", 1)
        message = [wire.message(bytes(PAYLOAD_BYTES))] * BATCH

        def send(topic: str) -> int:
            return connection.status(wire.SEND_MESSAGES, wire.batch(stream, topic, wire.to_partition(0), message))

        statuses = [send("new")]
        while statuses[-1] == 0 and len(statuses) < REQUESTS_MAX:
            statuses.append(send("old"))
        assert statuses[-1] == DISK_STATUS == send("new")
        connection.request(wire.DELETE_TOPIC, wire.identifier(stream) + wire.identifier("old"))
        deadline = time.monotonic() + 5  # 1 s on a machine that has time; the trash is else looked at every 15 s
        while send("new") != 0:
            assert time.monotonic() < deadline, "the deleted topic holds its room"
            time.sleep(0.02)
        assert len(connection.read_all(stream, "new", 0)) >= 2 * BATCH


def send_until_taken(connection: wire.Wire, partition: int, messages: list[bytes]) -> None:
    batch = wire.batch("s", "t", wire.to_partition(partition), messages)
    faults.wait_until(
        lambda: connection.status(wire.SEND_MESSAGES, batch) == 0, "sends are refused although the trash could go"
    )


def test_purges_in_a_loop_do_not_fill_a_small_disk(small_disk: Path) -> None:
    """Together they bring several times what the disk holds: the trash goes before sends are refused for long."""
    partitions, rounds, brought_bytes = 200, 12, 0
    with Server(small_disk) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", partitions)
        message = [wire.message(bytes(PAYLOAD_BYTES))]
        for _ in range(rounds):
            for partition in range(partitions):
                send_until_taken(connection, partition, message)
            details = connection.partitions("s", "t")
            assert all(each.messages_count == 1 for each in details)
            brought_bytes += sum(each.size_bytes for each in details)
            connection.purge_topic("s", "t")
        assert brought_bytes > 24 * 2**20 * 3 // 4
        send_until_taken(connection, 0, message)
        assert "read only" not in server.log()
