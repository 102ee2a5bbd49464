"""The door at a released nats-server: what nats-py publishes there is stored and acked, whatever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import nats.errors
import pytest

from shardd.client.messages import headers_of
from tests.doors.nats_peers import (
    NatsDoor,
    NatsServerProgram,
    Numbers,
    envelope,
    linked,
    nats_client,
    next_ack,
    wait_until,
)
from tests.support.on_loop import on_loop, until

TOO_LARGE = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServerProgram]:
    with NatsServerProgram(tmp_path_factory.mktemp("nats"), "max_payload: 2097152") as program:
        yield program


@pytest.fixture(scope="module")
def door(server: NatsServerProgram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsDoor]:
    with NatsDoor(tmp_path_factory.mktemp("door") / "data", linked(server.url)) as each:
        each.make_writer()
        yield each


def make_stream(door: NatsDoor, name: str, subject: str = "", **more: int | str) -> dict[str, object]:
    """A stream that the NATS server brings messages of."""
    before = door.figures()["listens"]
    made = door.make_stream(name, subject, **more)  # type: ignore[arg-type]
    wait_until(lambda: door.figures()["listens"] > before, "the NATS server does not know it")
    return made


@on_loop
async def test_what_is_published_there_is_stored_and_acked(door: NatsDoor, server: NatsServerProgram) -> None:
    stream = make_stream(door, "orders", "orders.in", partitions=12)
    async with nats_client(server.url) as client:
        acks = await client.subscribe("_INBOX.acks.>")
        await client.publish("orders.in", b"plain", reply="back", headers={"kind": "order"})
        await client.publish("orders.in.1", envelope(b"one", "_INBOX.acks.1", correlationId="c-1", key=b"k"))
        await client.publish("orders.in.11", envelope(b"eleven", "_INBOX.acks.1", correlationId="c-11"))
        await client.publish("orders.in.12", b"nobody's")
        await client.publish("orders.in.x", b"nobody's")
        heard = {ack.correlationId: ack for ack in [await next_ack(acks) for _ in range(2)]}
        assert {(each, ack.msgSubject, ack.offset) for each, ack in heard.items()} == {
            ("c-1", "orders.in.1", 0),
            ("c-11", "orders.in.11", 0),
        }
        await client.publish("orders.in", envelope(b"x" * 1_100_000, "_INBOX.acks.large"))
        assert (await next_ack(acks)).ackError == TOO_LARGE
    (plain,) = door.stored(stream)
    assert plain["payload"] == b"plain" and headers_of(plain["user_headers"]) == {"lb.reply": "back", "kind": b"order"}
    assert [door.payloads(stream, n) for n in (1, 2, 11)] == [[b"one"], [], [b"eleven"]]
    assert door.losses()["too large"] == 1


@on_loop
async def test_subjects_that_overlap_are_stored_once_by_each_stream(door: NatsDoor, server: NatsServerProgram) -> None:
    streams = [
        make_stream(door, name, subject, partitions=count)
        for name, subject, count in (("o1", "over.*", 1), ("o2", "over.>", 1), ("o3", "over.a", 2), ("o4", "over", 9))
    ]
    async with nats_client(server.url) as client:
        acks = await client.subscribe("_INBOX.acks")
        for subject in ("over.a", "over.a.1", "over.8", "over"):
            await client.publish(subject, envelope(subject.encode(), "_INBOX.acks"))
        heard = sorted([(await next_ack(acks)).stream for _ in range(9)])
    assert heard == ["o1", "o1", "o2", "o2", "o2", "o3", "o3", "o4", "o4"]
    assert [door.payloads(each) for each in streams] == [
        [b"over.a", b"over.8"],
        [b"over.a", b"over.a.1", b"over.8"],
        [b"over.a"],
        [b"over"],
    ]
    assert door.payloads(streams[2], 1) == [b"over.a.1"] and door.payloads(streams[3], 8) == [b"over.8"]


@on_loop
async def test_a_queue_group_is_one_whatever_the_subjects_of_its_streams_are(
    door: NatsDoor, server: NatsServerProgram
) -> None:
    """nats-server chooses among all subscriptions of a group that match; the router does the same (unit tests)."""
    streams = [
        make_stream(door, name, subject, partitions=count, group="g")
        for name, subject, count in (("g1", "grp.*", 1), ("g2", "grp.1", 1), ("g3", "grp", 2))
    ]
    async with nats_client(server.url) as client:
        acks = await client.subscribe("_INBOX.acks.grp")
        for n in range(90):
            await client.publish("grp.1", envelope(b"%d" % n, "_INBOX.acks.grp"))
        heard = [(await next_ack(acks)).stream for _ in range(90)]
    stored = [door.payloads(streams[0]), door.payloads(streams[1]), door.payloads(streams[2], 1)]
    assert sorted([each for part in stored for each in part], key=int) == [b"%d" % n for n in range(90)]
    assert all(len(each) > 5 for each in stored) and len(heard) == 90


@on_loop
async def test_streams_that_are_deleted_or_paused_listen_no_more(door: NatsDoor, server: NatsServerProgram) -> None:
    make_stream(door, "gone", "gone.*")
    make_stream(door, "halt", "halt.*")
    before = door.figures()["listens"]
    with door.root() as root:
        root.ask("liftbridge_delete_stream", {"name": "gone"})
        root.ask("liftbridge_pause_stream", {"name": "halt"})
    async with nats_client(server.url) as client:
        await until(lambda: door.figures()["listens"] > before)
        for subject in ("gone.a", "halt.a"):
            while True:  # the server says that nobody is there
                try:
                    await client.request(subject, b"x", timeout=0.2)
                except nats.errors.NoRespondersError:
                    break
                except nats.errors.TimeoutError:
                    continue


@on_loop
async def test_acks_do_not_come_back_as_messages(door: NatsDoor, server: NatsServerProgram) -> None:
    stream = make_stream(door, "_INBOX.loop")
    async with nats_client(server.url) as client:
        acks = await client.subscribe("_INBOX.loop")
        await client.publish("_INBOX.loop", envelope(b"x", "_INBOX.loop"))
        await acks.next_msg(timeout=30)  # the message itself
        await next_ack(acks)
        await client.publish("_INBOX.loop", b"last")
        await until(lambda: len(door.stored(stream)) >= 2)
    assert door.payloads(stream) == [b"x", b"last"]


def test_nodes_of_a_queue_group_store_each_message_once(
    door: NatsDoor, server: NatsServerProgram, tmp_path: Path
) -> None:
    with NatsDoor(tmp_path / "two", linked(server.url)) as other:
        other.make_writer()
        parts = [make_stream(node, "work", group="nodes") for node in (door, other)]

        @on_loop
        async def publish() -> None:
            async with nats_client(server.url) as client:
                acks = await client.subscribe("_INBOX.acks")
                for n in range(200):
                    await client.publish("work", envelope(b"%d" % n, "_INBOX.acks"))
                for _ in range(200):
                    await next_ack(acks)

        publish()
        stored = [node.payloads(part) for node, part in zip((door, other), parts, strict=True)]
        assert sorted(stored[0] + stored[1], key=int) == [b"%d" % n for n in range(200)]
        assert min(map(len, stored)) > 20


def test_acked_messages_survive_kills_of_the_nats_server_and_of_a_worker(
    door: NatsDoor, server: NatsServerProgram
) -> None:
    """Every time without a connection is counted and said."""
    stream = make_stream(door, "hard", partitions=2)
    numbers = Numbers(server.url, "hard", "hard.1")
    numbers.publish(200)
    before = door.losses().get("connection to NATS lost", 0)
    server.kill()
    wait_until(lambda: door.losses().get("connection to NATS lost", 0) > before, "nothing is counted")
    assert "is lost; what is published meanwhile is not stored" in door.log()
    server.start()
    wait_until(lambda: door.figures()["listens"] > 0, "the door does not come back")
    numbers.publish(200)
    for shard in (1, 0):
        os.kill(door.worker_pids()[shard], signal.SIGKILL)
        numbers.publish(200)
    found = [payload for partition in range(2) for payload in door.payloads(stream, partition)]
    assert numbers.acked <= set(found) and len(found) == len(set(found))
