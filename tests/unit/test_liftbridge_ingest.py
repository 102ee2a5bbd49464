"""What arrives over NATS: where it goes, what is acked, and what is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge import losses as module
from shardd.doors.liftbridge.ingest import Arrived, Ingest, is_inbox
from shardd.doors.liftbridge.losses import Loss, Losses
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.refusals import COMMAND as RIGHT
from shardd.doors.liftbridge.router import Router
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.envelope import decode_ack, encode_publish
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import RequireRight, Right, StreamInfo
from tests.support.on_loop import on_loop
from tests.unit.liftbridge_clients import FakeClient

STREAM = StreamInfo("s", "sub", "", 1, 2, 3, 4, 1, {})
Message = api_messages.Message
BYTES_MAX = 10_000


class View:
    """A registry that stands still."""

    def __init__(self, *streams: StreamInfo) -> None:
        self.router = Router()
        self.router.replace(streams)
        self._streams = {stream.name: stream for stream in streams}

    def streams(self) -> Mapping[str, StreamInfo]:
        return self._streams

    async def changed(self, since: int) -> int:
        return 1


class Worker(FakeClient):
    """Stores everything, or refuses it with `error`; whoever sends has the right to, or hears `denial`."""

    def __init__(self, error: Exception | None = None, denial: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.denial = denial
        self.asked: list[Any] = []
        self.rights: list[Any] = []

    async def command(self, name: str, request: object) -> Any:
        if name == RIGHT:
            self.rights.append(request)
            if self.denial is not None:
                raise self.denial
            return None
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return {"base_offset": 41 + len(self.asked), "timestamp_us": 7}


async def acks_of(
    payload: bytes,
    *streams: StreamInfo,
    error: Exception | None = None,
    denial: Exception | None = None,
    subject: str = "sub",
    fsync: bool = False,
    headers: bytes = b"",
) -> tuple[list[Any], dict[Loss, int], Worker]:
    view, worker, heard = View(*(streams or (STREAM,))), Worker(error, denial), list[tuple[str, bytes]]()
    publisher = Publisher(BYTES_MAX)
    ingest = Ingest(view, publisher, BYTES_MAX, Losses(), ack_all_fsync=fsync)
    arrived = Arrived(subject, "", payload, lambda inbox, ack: heard.append((inbox, ack)), headers=headers)
    ingest.take(cast(DoorClient, worker), arrived, view.router.matches(subject))
    await asyncio.wait_for(publisher.drained(), 10)
    acks = [(inbox, decode_ack(ack)) for inbox, ack in heard]
    assert all(ack is not None and ack.ackInbox == inbox for inbox, ack in acks)
    return [ack for _, ack in acks], dict(ingest.losses.counts), worker


def said(policy: int = 0, inbox: str = "acks", **more: Any) -> bytes:
    return encode_publish(Message(value=b"v", ackInbox=inbox, ackPolicy=policy, correlationId="c", **more))


@on_loop
async def test_policies_decide_about_acks_of_what_is_stored() -> None:
    for policy, count in ((0, 1), (1, 1), (2, 0), (3, 0), (-1, 0)):
        acks, lost, _ = await acks_of(said(policy))
        assert len(acks) == count and not lost
        for ack in acks:
            assert (ack.offset, ack.receptionTimestamp, ack.ackPolicy, ack.ackError) == (42, 7_000, policy, 0)
            assert ack.commitTimestamp > 0 and (ack.stream, ack.partitionSubject) == ("s", "sub")
    wide = msgspec.structs.replace(STREAM, settings={"minIsr": 2})
    assert [len((await acks_of(said(policy), wide))[0]) for policy in (0, 1)] == [1, 0]


@on_loop
async def test_only_all_waits_for_the_device_and_only_if_a_setting_says_so() -> None:
    for policy, setting, wanted in ((1, True, True), (0, True, False), (1, False, False)):
        _, _, worker = await acks_of(said(policy), fsync=setting)
        assert worker.asked[0].fsync is wanted


@pytest.mark.parametrize(
    ("status", "loss", "error"),
    [
        (Status.UNAUTHORIZED, Loss.REFUSED, None),
        (Status.CANNOT_APPEND_MESSAGE, Loss.READONLY, None),
        (Status.UNEXPECTED_OFFSET, Loss.OFFSET, 2),
        (Status.TOO_BIG_MESSAGE_PAYLOAD, Loss.TOO_LARGE, 3),
        (Status.TOPIC_ID_NOT_FOUND, Loss.FAILED, 1),
        (Status.CLIENT_NOT_FOUND, Loss.NO_WORKER, 1),
        (Status.TASK_TIMEOUT, Loss.UNKNOWN, 1),
    ],
)
def test_what_is_refused_is_counted_and_told_whatever_the_policy_is(
    status: Status, loss: Loss, error: int | None
) -> None:
    @on_loop
    async def refuse() -> None:
        for policy in (0, 2, 7):
            acks, lost, _ = await acks_of(said(policy), error=ShardError(status))
            assert lost == {loss: 1} and [ack.ackError for ack in acks] == ([] if error is None else [error])
        acks, lost, _ = await acks_of(b"plain", error=ShardError(status))
        assert lost == {loss: 1} and not acks

    refuse()


@on_loop
async def test_what_does_not_listen_loses_messages() -> None:
    for stream, loss in (
        (msgspec.structs.replace(STREAM, paused=(0,)), Loss.PAUSED),
        (msgspec.structs.replace(STREAM, readonly=(0,)), Loss.READONLY),
        (msgspec.structs.replace(STREAM, name="__cursors"), Loss.REFUSED),
    ):
        acks, lost, worker = await acks_of(said(), stream)
        assert lost == {loss: 1} and not acks and not worker.asked
        acks, lost, worker = await acks_of(said(), stream, subject="sub.1")
        assert bool(acks) is bool(worker.asked) is (stream.name == "s")


@on_loop
async def test_the_whole_message_counts_for_too_large() -> None:
    acks, lost, worker = await acks_of(said(2, key=b"k" * 9_990))
    assert [ack.ackError for ack in acks] == [3] and lost == {Loss.TOO_LARGE: 1} and not worker.asked
    assert acks[0].commitTimestamp == 0 and acks[0].receptionTimestamp > 0


TOO_LARGE = {"too large": (said(key=b"k" * 9_990), b""), "headers": (said(), b"NATS/1.0\r\n" + b"a: b\r\n" * 300)}


@pytest.mark.parametrize("message", TOO_LARGE)
@pytest.mark.parametrize(
    ("denial", "loss", "errors"),
    [
        (None, Loss.TOO_LARGE, [3]),
        (ShardError(Status.UNAUTHORIZED), Loss.REFUSED, []),
        (ShardError(Status.CLIENT_NOT_FOUND), Loss.NO_WORKER, []),
        (WorkerLostError("gone"), Loss.NO_WORKER, []),
        (RuntimeError("of this program"), Loss.FAILED, []),
    ],
)
def test_what_the_door_refuses_is_told_to_publishers_with_the_right(
    message: str, denial: Exception | None, loss: Loss, errors: list[int]
) -> None:
    @on_loop
    async def refuse() -> None:
        payload, headers = TOO_LARGE[message]
        acks, lost, worker = await acks_of(payload, denial=denial, headers=headers)
        assert [ack.ackError for ack in acks] == errors and lost == {loss: 1}
        assert worker.rights == [RequireRight(Right.SEND, ("s",))] and not worker.asked

    refuse()


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (ShardError(Status.SHARD_COMMUNICATION_ERROR), Loss.NO_WORKER),
        (ShardError(Status.TOPIC_ID_NOT_FOUND), Loss.NO_WORKER),
        (WorkerLostError("gone"), Loss.UNKNOWN),
    ],
)
def test_refusal_of_a_worker_that_says_nothing_of_the_right_is_not_told(error: Exception, loss: Loss) -> None:
    @on_loop
    async def refuse() -> None:
        acks, lost, _ = await acks_of(said(), error=error, denial=WorkerLostError("gone"))
        assert not acks and lost == {loss: 1}
        acks, lost, _ = await acks_of(said(), error=error, denial=ShardError(Status.UNAUTHORIZED))
        assert not acks and lost == {Loss.REFUSED: 1}

    refuse()


@on_loop
async def test_publisher_that_has_stored_in_the_stream_hears_that_its_worker_is_lost() -> None:
    worker, publisher, heard = Worker(), Publisher(BYTES_MAX), list[Any]()
    client = cast(DoorClient, worker)
    publisher.submit(client, STREAM, 0, LiftbridgeMessage(b"x"), done=heard.append)
    await asyncio.wait_for(publisher.drained(), 10)
    worker.error = worker.denial = WorkerLostError("gone")
    for stream in (STREAM, msgspec.structs.replace(STREAM, incarnation=9)):
        publisher.submit(client, stream, 0, LiftbridgeMessage(b"x"), done=heard.append)
        await asyncio.wait_for(publisher.drained(), 10)
    assert [(each.status, each.right_is_known) for each in heard] == [
        (Status.OK, True),
        (Status.TASK_TIMEOUT, True),
        (Status.TASK_TIMEOUT, False),
    ]


@pytest.mark.parametrize(
    ("inbox", "is_one"),
    [
        ("acks.1", True),
        ("_INBOX.x.y", True),
        ("", False),
        ("a b", False),
        ("a\r\nPUB secret 1\r\nx", False),
        ("a\tb", False),
        ("a\x00b", False),
        ("a.*", False),
        (">", False),
        ("a..b", False),
        ("a" * 1_025, False),
    ],
)
def test_acks_go_to_subjects_only(inbox: str, is_one: bool) -> None:
    assert is_inbox(inbox) is is_one

    @on_loop
    async def publish() -> None:
        acks, lost, worker = await acks_of(said(inbox=inbox))
        assert len(acks) == is_one and not lost and len(worker.asked) == 1

    publish()


@on_loop
async def test_a_correlation_id_is_not_repeated_without_bounds() -> None:
    message = encode_publish(Message(value=b"v", ackInbox="acks", correlationId="c" * 1_025))
    view, worker, heard = View(STREAM), Worker(), list[bytes]()
    publisher = Publisher(10_000)
    ingest = Ingest(view, publisher, 10_000, Losses())
    ingest.take(
        cast(DoorClient, worker),
        Arrived("sub", "", message, lambda _, ack: heard.append(ack)),
        [*view.router.matches("sub")],
    )
    await asyncio.wait_for(publisher.drained(), 10)
    assert len(worker.asked) == 1 and not heard


@on_loop
async def test_losses_are_counted_and_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "REPORT_INTERVAL_S", 3_600.0)
    losses = Losses()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            losses.count(Loss.PAUSED, "a\nb")
        await asyncio.sleep(0.05)
        for _ in range(1_000):
            losses.count(Loss.READONLY, "x" * 5_000)
        await asyncio.sleep(0.05)
        lines = [record.getMessage() for record in caplog.records]
        assert lines == ["messages over NATS that were lost (paused partition: 3), the last one on 'a\\nb'"]
        losses.close()
    assert len(caplog.records) == 2 and "read-only partition: 1000" in caplog.text and len(caplog.text) < 1_000
    assert losses.counts == {Loss.PAUSED: 3, Loss.READONLY: 1_000}
