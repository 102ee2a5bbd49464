"""What lies beside a log never decides whether the log can be read: a partition opens whatever the disk says of its
producers, stored offsets, ids, index, manifests or marker of an import."""

from __future__ import annotations

import errno
import os

import pytest

from shardd.log import layout
from shardd.log.imported import write_imported
from shardd.log.incarnation import read_incarnation
from shardd.protocol.codes import Code
from shardd.protocol.producers import Produced, ProducedKind
from shardd.worker.producers import FILE_NAME
from tests.crash.faults import wait_until
from tests.crash.opened import BATCH, BATCHES, DEDUPLICATION, MESSAGES, STORED, Left
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import identified, stored
from tests.server.test_unfinished_batches import become_of_another_boot
from tests.support import wire
from tests.support.wide import crossed

CANNOT_READ, CANNOT_WRITE = 10002, 10006
DELETE_OFFSET = int(Code.DELETE_CONSUMER_OFFSET)
OFFSET, NEXT = 1, 5


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("opened"), {})


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("durable"), {"SHARDD_SYSTEM_PARTITION_ACK": "durable"})


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The same, of a topic that compares ids."""
    return Left(tmp_path_factory.mktemp("compared"), DEDUPLICATION)


def test_ids_in_a_segment_that_cannot_be_read_cost_ids_and_no_message(compared: Left) -> None:
    compared.fresh()
    segments = sorted(compared.partition.glob("*.log"))
    assert len(segments) >= 4
    bad = segments[-3]
    behind = int(segments[-2].stem)
    compared.control.arm("read", f"{bad.name}$", 1, errno.EIO, for_ever=True)
    with compared.opened() as root:
        for known in range(behind, MESSAGES):  # the window begins behind what cannot be read
            root.send("s", "t", wire.to_partition(0), [identified(known)])
        root.send("s", "t", wire.to_partition(0), [identified(MESSAGES)])
        answer = root.poll("s", "t", 0, value=behind, count=1000)
        assert [int(each.payload) for each in answer.messages] == list(range(behind, MESSAGES + 1))
        assert root.poll("s", "t", 0, value=0, count=10).messages[0].offset == 0
        compared.control.disarm()
        assert stored(root) == list(range(MESSAGES + 1))
    assert "read only" not in compared.server.log()


SIDES = {
    "producers": ("producers$",),
    "stored offsets": ("consumer-offsets$",),
    "active index": ("ACTIVE.index$",),
    "active manifest": ("ACTIVE.manifest$",),
    "manifests": (".manifest$",),
    "imported": ("imported$",),
}
WAYS = ("EIO at a read", "EIO at an open", "EACCES", "ENOSPC", "EMFILE", "ENOMEM", "oversized", "truncated", "empty")
HEALING = {"EMFILE": errno.EMFILE, "ENOMEM": errno.ENOMEM}


def pattern_of(left: Left, side: str) -> str:
    starts = sorted(path.stem for path in left.partition.glob("*.log"))
    return SIDES[side][0].replace("ACTIVE", starts[-1])


def spoil(left: Left, side: str, way: str) -> None:
    """As this way says, from the next start on."""
    pattern = pattern_of(left, side)
    if side == "imported":
        write_imported(left.partition, MESSAGES)
    if way in ("oversized", "truncated", "empty"):
        for path in left.partition.iterdir():
            if path.name.endswith(pattern.removesuffix("$")):
                size = path.stat().st_size
                os.truncate(path, {"oversized": 3 << 30, "truncated": size // 2, "empty": 0}[way])
        return
    code = errno.EIO if "EIO" in way else errno.EACCES if way == "EACCES" else getattr(errno, way)
    operation = "open" if way in ("EIO at an open", "EACCES", *HEALING) else "write" if way == "ENOSPC" else "read"
    left.control.arm(operation, pattern, 1, code, for_ever=True)


@pytest.mark.parametrize(("way", "side"), crossed(WAYS, SIDES, times=2))
def test_the_log_is_served_whatever_the_disk_says_of_a_side_file(left: Left, side: str, way: str) -> None:
    left.fresh()
    spoil(left, side, way)
    with left.opened() as root:
        if way in HEALING:
            left.control.disarm()  # and what it has kept closed opens by itself
        wait_until(lambda: serves(root), "messages are not served")
        assert stored(root) == list(range(MESSAGES))
    assert "until the next start" not in left.server.log()


def serves(root: wire.Wire) -> bool:
    try:
        return bool(root.poll("s", "t", 0, value=0, count=1).messages)
    except wire.StatusError:
        return False


def of_offset(code: int) -> tuple[int, bytes]:
    """A request for the stored offset of the consumer 1, with what else it has."""
    place = wire.consumer() + wire.identifier("s") + wire.identifier("t") + wire.optional_partition(0)
    return code, place + (bytes(8) if code == wire.STORE_OFFSET else b"")


def status_of_poll(root: wire.Wire, strategy: int, *, auto_commit: bool, count: int = 10) -> int:
    try:
        root.poll("s", "t", 0, strategy=strategy, count=count, auto_commit=auto_commit)
    except wire.StatusError as error:
        return error.status
    return 0


def test_stored_offsets_that_cannot_be_read_are_neither_zero_nor_empty(left: Left) -> None:
    left.fresh()
    left.control.arm("read", "consumer-offsets$", 1, errno.EIO, for_ever=True)
    with left.opened() as root:
        assert stored(root) == list(range(MESSAGES))
        for code in (wire.GET_OFFSET, wire.STORE_OFFSET, DELETE_OFFSET):
            assert root.status(*of_offset(code)) == CANNOT_READ, code
        assert status_of_poll(root, NEXT, auto_commit=False) == CANNOT_READ
        assert status_of_poll(root, NEXT, auto_commit=True) == CANNOT_READ
        assert status_of_poll(root, OFFSET, auto_commit=True) == CANNOT_READ
        assert status_of_poll(root, OFFSET, auto_commit=False) == 0
        left.send(root, BATCHES)  # sends go on
        left.control.disarm()
        wait_until(lambda: status_of_poll(root, NEXT, auto_commit=False) == 0, "stored offsets are not read again")
        assert root.get_offset("s", "t", 0) == STORED
        assert root.poll("s", "t", 0, strategy=NEXT, count=1).messages[0].offset == STORED + 1
        assert stored(root) == list(range(MESSAGES + BATCH))


def test_first_offset_files_that_cannot_be_read_cost_no_message_and_are_neither_zero_nor_empty(left: Left) -> None:
    """Of a directory of format version 1, which has no table yet. A start that can read them takes them over."""
    left.fresh()
    (left.partition / "consumer-offsets").unlink()
    (left.partition / "offsets" / "consumers").mkdir(parents=True)
    (left.partition / "offsets" / "consumers" / "1").write_bytes((3).to_bytes(8, "little"))
    left.control.arm("read", "offsets/consumers/1$", 1, errno.EIO, for_ever=True)
    with left.opened() as root:
        assert stored(root) == list(range(MESSAGES))
        for code in (wire.GET_OFFSET, wire.STORE_OFFSET, DELETE_OFFSET):
            assert root.status(*of_offset(code)) == CANNOT_READ, code
        assert status_of_poll(root, NEXT, auto_commit=True) == CANNOT_READ
        root.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % MESSAGES)])
        assert stored(root) == list(range(MESSAGES + 1))
        assert "offsets/consumers/1" in left.server.log()
    left.control.disarm()
    with left.opened() as root:
        assert root.get_offset("s", "t", 0) == 3
        assert root.status(*of_offset(wire.STORE_OFFSET)) == 0


def test_producers_that_cannot_be_read_are_never_believed_again_once_the_log_has_gone_on(durable: Left) -> None:
    """Read later, their file would cut the log back and call others' messages duplicates."""
    durable.fresh()
    durable.control.arm("read", "producers$", 1, errno.EIO, for_ever=True)
    with durable.opened() as root:
        assert stored(root) == list(range(MESSAGES))
        with pytest.raises(wire.StatusError) as refused:
            durable.again(root, BATCHES - 1)
        assert refused.value.status == CANNOT_READ
        assert (durable.partition / layout.PRODUCERS).exists()
        for number in (BATCHES, BATCHES + 2):  # plain ones
            durable.send(root, number)
        durable.control.disarm()
        aside = durable.partition / layout.PRODUCERS_UNREADABLE
        assert aside.exists()
        assert durable.again(root, BATCHES - 1).kind is ProducedKind.UNKNOWN_PRODUCER
    sent = [*range(MESSAGES), *numbers_of(BATCHES), *numbers_of(BATCHES + 2)]
    incarnation = read_incarnation(durable.partition)
    assert incarnation is not None
    become_of_another_boot(durable.partition, incarnation)
    (durable.server.data_dir / FILE_NAME).unlink(missing_ok=True)
    with durable.opened() as root:
        assert stored(root) == sent
        assert durable.again(root, BATCHES - 1).kind is ProducedKind.UNKNOWN_PRODUCER
        durable.send(root, BATCHES + 4)
        who = init(root)
        numbers = numbers_of(BATCHES + 6)
        assert once(root, who, 0, numbers) == Produced(ProducedKind.STORED, BATCH, len(sent) + BATCH)
        assert once(root, who, 0, numbers) == Produced(ProducedKind.DUPLICATE, BATCH, len(sent) + BATCH)
        assert stored(root) == [*sent, *numbers_of(BATCHES + 4), *numbers]


def test_a_kill_after_producers_got_their_other_name_forgets_them_and_cuts_nothing(durable: Left) -> None:
    """What it leaves: the other name, and no new file yet."""
    durable.fresh()
    file = durable.partition / layout.PRODUCERS
    file.rename(durable.partition / layout.PRODUCERS_UNREADABLE)
    sent = list(range(MESSAGES))
    for number in (BATCHES, BATCHES + 2):
        with durable.opened() as root:
            assert stored(root) == sent
            assert durable.again(root, BATCHES - 1).kind is ProducedKind.UNKNOWN_PRODUCER
            durable.send(root, number)
            sent += numbers_of(number)
            assert file.exists()
    with durable.opened() as root:
        assert stored(root) == sent


def numbers_of(number: int) -> list[int]:
    return list(range(BATCH * number, BATCH * (number + 1)))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_producers_that_cannot_be_read_for_the_moment_keep_their_file(left: Left, code: int) -> None:
    left.fresh()
    left.control.arm("open", "producers$", 1, code, for_ever=True)
    with left.opened() as root:
        assert stored_or_none(root) in (None, list(range(MESSAGES)))
        plain = wire.batch("s", "t", wire.to_partition(0), [identified(MESSAGES)])
        assert root.status(wire.SEND_MESSAGES, plain) == CANNOT_WRITE
        left.control.disarm()
        wait_until(lambda: root.status(wire.SEND_MESSAGES, plain) == 0, "sends are refused for good")
        assert stored(root) == list(range(MESSAGES + 1))
        assert left.again(root, BATCHES - 1) == Produced(ProducedKind.DUPLICATE, BATCH, MESSAGES - BATCH)
    assert not (left.partition / layout.PRODUCERS_UNREADABLE).exists()


def stored_or_none(root: wire.Wire) -> list[int] | None:
    return stored(root) if serves(root) else None
