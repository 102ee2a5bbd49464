"""The door as a NATS server: what nats-py publishes is stored, acked, and heard by those who may hear it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import nats
import nats.errors
import pytest
from immutables import Map

from shardd.client.messages import headers_of
from shardd.protocol.account_requests import CreateUserRequest, UpdatePermissionsRequest
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from tests.doors.nats_door import Settings
from tests.doors.nats_peers import RIGHTS, NatsDoor, Numbers, envelope, nats_client, next_ack, wait_until
from tests.support import wire
from tests.support.on_loop import on_loop, until

LEADER, ALL, NONE = 0, 1, 2
INCORRECT_OFFSET, TOO_LARGE = 2, 3


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsDoor]:
    server = NatsDoor(tmp_path_factory.mktemp("nats") / "data", Settings(message_bytes_max=10_000))
    with server:
        server.make_writer()
        server.make_writer("reader", {**RIGHTS, "send_messages": False})
        server.make_writer("sender", {**RIGHTS, "poll_messages": False, "read_streams": False, "read_topics": False})
        server.make_writer("other", {})
        yield server


def lost(door: NatsDoor, reason: str) -> int:
    return door.losses().get(reason, 0)


@on_loop
async def test_plain_messages_and_envelopes_are_stored_and_acked(door: NatsDoor) -> None:
    stream = door.make_stream("orders", "orders.in", 2)
    async with nats_client(door.url) as client:
        acks = await client.subscribe("acks.1")
        await client.publish("orders.in", b"plain", reply="back.here", headers={"kind": "order"})
        await client.publish("orders.in", b"")
        said = envelope(b"hello", "acks.1", correlationId="c-7", key=b"k1", headers={"h": b"1", "subject": b"x"})
        await client.publish("orders.in.1", said)
        await client.publish("orders.in.7", b"goes nowhere")
        ack = await next_ack(acks)
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("orders", "orders.in", "orders.in.1")
    assert (ack.offset, ack.correlationId, ack.ackInbox, ack.ackError) == (0, "c-7", "acks.1", 0)
    (enveloped,) = door.stored(stream, 1)
    assert ack.receptionTimestamp == enveloped["timestamp_us"] * 1_000 <= ack.commitTimestamp
    assert enveloped["payload"] == b"hello"
    assert headers_of(enveloped["user_headers"]) == {"lb.key": b"k1", "h": b"1"}
    plain, empty = door.stored(stream, 0)
    assert (plain["payload"], empty["payload"]) == (b"plain", b"\0")
    assert headers_of(plain["user_headers"]) == {"lb.reply": "back.here", "kind": b"order"}
    assert plain["timestamp_us"] < empty["timestamp_us"]
    assert all(each["origin_timestamp_us"] == each["timestamp_us"] for each in (plain, empty, enveloped))


@on_loop
async def test_policies_and_expected_offsets_decide_what_is_acked(door: NatsDoor) -> None:
    stream = door.make_stream("controlled", optimisticConcurrencyControl=True)
    async with nats_client(door.url) as client:
        acks = await client.subscribe("acks.controlled")

        async def said(policy: int, offset: int, name: str, size: int = 1) -> None:
            message = envelope(b"x" * size, "acks.controlled", ackPolicy=policy, offset=offset, correlationId=name)
            await client.publish("controlled", message)

        await client.publish("controlled", b"plain expects 0")
        await said(LEADER, 0, "refused")
        await said(NONE, 1, "stored without an ack")
        await said(NONE, 1, "refused whatever the policy is")
        await said(ALL, 2, "stored")
        await said(7, -1, "a policy that nobody knows")
        await said(NONE, -1, "too large", 10_000)
        await said(LEADER, -1, "any")
        await client.publish("controlled", b"plain expects 0 again")
        heard = {ack.correlationId: (ack.offset, ack.ackError) for ack in [await next_ack(acks) for _ in range(5)]}
        await client.flush()
    assert heard == {
        "refused": (0, INCORRECT_OFFSET),
        "refused whatever the policy is": (0, INCORRECT_OFFSET),
        "stored": (2, 0),
        "too large": (0, TOO_LARGE),
        "any": (4, 0),
    }
    wait_until(lambda: lost(door, "another offset expected") == 3, "it is not counted")
    assert lost(door, "too large") == 1 and len(door.stored(stream)) == 5


@on_loop
async def test_what_is_paused_or_read_only_loses_messages_and_they_are_counted(door: NatsDoor) -> None:
    stream = door.make_stream("halting", partitions=3)
    with door.root() as root:
        root.ask("liftbridge_pause_stream", {"name": "halting", "partitions": [1]})
        root.ask("liftbridge_set_readonly", {"name": "halting", "partitions": [2], "readonly": True})
    async with nats_client(door.url) as client:
        acks = await client.subscribe("acks.halting")
        while lost(door, "paused partition") < 1 or lost(door, "read-only partition") < 1:
            await client.publish("halting.1", envelope(b"x", "acks.halting"))
            await client.publish("halting.2", envelope(b"x", "acks.halting"))
            await client.flush()
        await client.publish("halting", envelope(b"x", "acks.halting", correlationId="stored"))
        ack = await next_ack(acks)
        while not ack.correlationId:  # from before the door knew it
            ack = await next_ack(acks)
    assert ack.correlationId == "stored" and len(door.stored(stream)) == 1
    with door.root() as root:
        root.ask("liftbridge_delete_stream", {"name": "halting"})


@on_loop
async def test_several_streams_hear_one_subject_and_groups_share_it(door: NatsDoor) -> None:
    both = [door.make_stream("w1", "wild.*.x"), door.make_stream("w2", "wild.>")]
    shared = [door.make_stream(f"q{n}", "wild.a.x", group="g") for n in range(2)]
    async with nats_client(door.url) as client:
        acks = await client.subscribe("acks.wild")
        for n in range(40):
            await client.publish("wild.a.x", envelope(b"%d" % n, "acks.wild"))
        heard = [await next_ack(acks) for _ in range(120)]
    wanted = [b"%d" % n for n in range(40)]
    assert [door.payloads(each) for each in both] == [wanted, wanted]
    parts = [door.payloads(each) for each in shared]
    assert sorted(parts[0] + parts[1], key=int) == wanted and all(part == sorted(part, key=int) for part in parts)
    assert {headers_of(each["user_headers"]).get("lb.subj") for each in door.stored(both[0])} == {"wild.a.x"}
    assert len([ack for ack in heard if ack.stream.startswith("q")]) == 40


@on_loop
async def test_subscribers_hear_what_is_stored_if_they_may_poll_it(door: NatsDoor) -> None:
    stream = door.make_stream("news", "news.*")
    async with (
        nats_client(door.url) as writer,
        nats_client(door.url, user="reader", password="secret") as reader,
        nats_client(door.url, user="sender", password="secret") as deaf,
        nats_client(door.url, user="other", password="secret") as other,
    ):
        heard = await reader.subscribe("news.>")
        unheard = [await each.subscribe(">") for each in (deaf, other)]
        own = await writer.subscribe("news.sport")
        for each in (reader, deaf, other):
            await each.flush()
        for n in range(3):
            await writer.publish("news.sport", b"%d" % n, reply="who.asks")
        await reader.publish("news.sport", b"he may not")
        await deaf.publish("news.sport", b"she may")
        await reader.flush()
        got = [await heard.next_msg(timeout=30) for _ in range(4)]
        assert sorted(each.data for each in got) == [b"0", b"1", b"2", b"she may"]
        assert [each.data for each in got if each.data.isdigit()] == [b"0", b"1", b"2"]
        assert {(each.subject, each.reply) for each in got if each.data.isdigit()} == {("news.sport", "who.asks")}
        assert {(await own.next_msg(timeout=30)).data for _ in range(4)} == {each.data for each in got}
        for silent in unheard:
            with pytest.raises(nats.errors.TimeoutError):
                await silent.next_msg(timeout=0.2)
    assert sorted(door.payloads(stream)) == [b"0", b"1", b"2", b"she may"]
    assert lost(door, "no right to publish") >= 1


@on_loop
async def test_a_stream_that_may_not_store_a_message_lets_nobody_hear_it(door: NatsDoor) -> None:
    """Else whoever may create a stream on `>` hears everything."""
    mine, spying = door.make_stream("mine", "leak.mine"), door.make_stream("spying", "leak.>")

    def rights(**topics: TopicPermissions) -> Permissions:
        ids = {"mine": mine["topic_id"], "spying": spying["topic_id"]}
        of = StreamPermissions(topics=Map({ids[name]: rights for name, rights in topics.items()}))
        return Permissions(streams=Map({mine["stream_id"]: of}))

    poll, send = TopicPermissions(poll_messages=True), TopicPermissions(send_messages=True)
    with wire.connect(door.address) as root:
        for name, may in (("publisher", rights(mine=send)), ("spy", rights(spying=poll)), ("owner", rights(mine=poll))):
            root.request(Code.CREATE_USER, CreateUserRequest(name, "secret", 1, may).encode())
    async with (
        nats_client(door.url, user="publisher", password="secret") as publisher,
        nats_client(door.url, user="spy", password="secret") as spy,
        nats_client(door.url, user="owner", password="secret") as owner,
    ):
        wide, heard = await spy.subscribe(">"), await owner.subscribe("leak.*")
        await spy.flush()
        await owner.flush()
        for n in range(20):
            await publisher.publish("leak.mine", b"%d" % n)
        assert [(await heard.next_msg(timeout=30)).data for _ in range(20)] == [b"%d" % n for n in range(20)]
        with pytest.raises(nats.errors.TimeoutError):
            await wide.next_msg(timeout=0.5)
        with wire.connect(door.address) as root:
            both = UpdatePermissionsRequest("spy", rights(mine=poll, spying=poll))
            root.request(Code.UPDATE_PERMISSIONS, both.encode())
        n, found = 20, b""
        while not found:
            assert n < 1_000
            await publisher.publish("leak.mine", b"%d" % n)
            with contextlib.suppress(nats.errors.TimeoutError):
                found = (await wide.next_msg(timeout=0.1)).data
            n += 1
        assert int(found) >= 20, "from before he might"
        await spy.flush()
        seen = [found] + [(await wide.next_msg(timeout=30)).data for _ in range(wide.pending_msgs)]
        assert len(seen) == len({*seen}), "he hears one twice"
    assert not door.stored(spying) and len(door.stored(mine)) >= 21


@on_loop
async def test_inboxes_are_heard_by_their_own_user_only(door: NatsDoor) -> None:
    door.make_stream("asked")
    async with (
        nats_client(door.url, user="reader", password="secret") as spy,
        nats_client(door.url, user="sender", password="secret") as asking,
        nats_client(door.url, user="sender", password="secret") as same,
    ):
        spying = [await spy.subscribe(each) for each in (">", "_INBOX.>", "acks.own")]
        acks = await asking.subscribe("acks.own")
        echo = await same.subscribe("echo.me")
        for each in (spy, asking, same):
            await each.flush()
        await asking.publish("asked", envelope(b"x", "acks.own", correlationId="mine"))
        assert (await next_ack(acks)).correlationId == "mine"
        question = asyncio.create_task(asking.request("echo.me", b"hello", timeout=30))
        asked = await echo.next_msg(timeout=30)
        await asked.respond(b"back")
        assert (await question).data == b"back"
        await spy.publish("acks.own", b"forged")
        await spy.flush()
        with pytest.raises(nats.errors.TimeoutError):
            await acks.next_msg(timeout=0.2)
        heard = [(await each.next_msg(timeout=30)).data for each in (spying[0], spying[0], spying[2])]
        assert b"mine" in heard[0]  # the stream's message, which he may poll
        assert heard[1:] == [b"forged", b"forged"]
        with pytest.raises(nats.errors.TimeoutError):
            await spying[1].next_msg(timeout=0.2)


@on_loop
async def test_subscriptions_end_when_they_should_and_groups_share(door: NatsDoor) -> None:
    async with nats_client(door.url) as one, nats_client(door.url) as two:
        parts = [await each.subscribe("shared.work", queue="workers") for each in (one, two, two)]
        some = await one.subscribe("shared.work", max_msgs=3)
        await some.unsubscribe(limit=3)
        silent = await one.subscribe("shared.work")
        await silent.unsubscribe()
        await two.flush()
        await one.flush()
        for n in range(60):
            await one.publish("shared.work", b"%d" % n)
        await one.flush()
        await two.flush()
        await until(lambda: sum(each.pending_msgs for each in parts) == 60)
        assert all(each.pending_msgs > 5 for each in parts)
        assert (some.pending_msgs, silent.pending_msgs) == (3, 0)
    async with nats_client(door.url, no_echo=True) as quiet, nats_client(door.url) as loud:
        deaf, hearing = await quiet.subscribe("own.words"), await loud.subscribe("own.words")
        await loud.flush()
        await quiet.publish("own.words", b"x")
        assert (await hearing.next_msg(timeout=30)).data == b"x"
        await quiet.flush()
        assert deaf.pending_msgs == 0


@on_loop
async def test_who_may_come_in(door: NatsDoor) -> None:
    with door.root() as root:
        token = root.ask("create_personal_access_token", {"name": "nats", "expiry_us": 0})["text"]
    async with nats_client(door.url, token=token) as client:
        assert client.is_connected
    for wrong in ({"user": "reader", "password": "wrong"}, {"user": "nobody", "password": "x"}, {"token": "x"}):
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            async with nats_client(door.url, **wrong):
                pass


@on_loop
async def test_what_was_sent_before_the_connection_closed_is_stored(door: NatsDoor) -> None:
    stream = door.make_stream("parting")
    reader, writer = await asyncio.open_connection("127.0.0.1", door.nats_port)
    await reader.readline()
    lines = b"".join(b"PUB parting 4\r\n%04d\r\n" % n for n in range(5_000))
    writer.write(b"CONNECT {}\r\n" + lines)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    wait_until(lambda: len(door.stored(stream)) == 5_000, "messages are missing")
    assert door.payloads(stream) == [b"%04d" % n for n in range(5_000)]
    wait_until(lambda: door.figures()["unread"] == 0, "the connection is still there")


@on_loop
async def test_nobody_comes_in_without_a_login_where_no_setting_says_as_whom(door: NatsDoor) -> None:
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
        async with nats_client(door.strict_url):
            pass
    async with nats_client(door.strict_url, user="reader", password="secret") as client:
        await client.flush()


def test_what_was_counted_is_among_the_figures_of_the_server(door: NatsDoor) -> None:
    def counters() -> dict[str, int]:
        with door.root() as root:
            said = root.ask("get_metrics")
        names = [name for _, name in said["names"]]
        return {
            name: value for name, value in zip(names, said["shards"][0]["values"], strict=True) if "liftbridge" in name
        }

    lost = door.losses()["no right to publish"]
    wait_until(lambda: counters().get("liftbridge.refused.nats_lost", 0) == lost, str(counters()))
    wait_until(lambda: counters()["liftbridge.nats_messages"] > 5_000, str(counters()))


def test_acked_messages_survive_the_kill_of_a_worker_and_the_rest_is_counted(door: NatsDoor) -> None:
    stream = door.make_stream("killed", partitions=2)
    numbers = Numbers(door.url, "killed", "killed.1")
    numbers.publish(200)
    for shard in range(2):
        os.kill(door.worker_pids()[shard], signal.SIGKILL)
        numbers.publish(200)
    found = [payload for partition in range(2) for payload in door.payloads(stream, partition)]
    assert numbers.acked <= set(found) and len(found) == len(set(found))
