"""gRPC and NATS in one door: a message that comes in one way goes out the other, with the released nats-server and with
the door's own."""

from __future__ import annotations

import asyncio
import contextlib
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from immutables import Map

from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from tests.doors.liftbridge_server import ANONYMOUS, HOST, EndedError, LiftbridgeClient, LiftbridgeServer
from tests.doors.nats_peers import NatsServerProgram, envelope, nats_client, next_ack
from tests.support import wire
from tests.support.stalls import figures_of, metrics, wait_until

SEND, POLL = TopicPermissions(send_messages=True), TopicPermissions(poll_messages=True)
VALUES = [b"to a stream", b"in a session", b"again in it", b"to a subject"]


class Both:
    """`url`: where NATS clients connect; `is_own`: they are users of the server."""

    def __init__(self, server: LiftbridgeServer, url: str, is_own: bool) -> None:
        self.server = server
        self.url = url
        self.is_own = is_own


@pytest.fixture(scope="module", params=["nats-server", "embedded"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("liftbridge-nats")
    with ExitStack() as held:
        if request.param == "embedded":
            settings = {
                "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
                "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": f"{HOST}:0",
            }
            server = held.enter_context(LiftbridgeServer(directory / "data", settings))
            written = tomllib.loads(server.runtime_config.read_text())
            yield Both(server, f"nats://{written['liftbridge']['nats_server']['address']}", is_own=True)
        else:
            program = held.enter_context(NatsServerProgram(directory))
            settings = {
                "SHARDD_LIFTBRIDGE_NATS_SERVERS": program.url,
                "SHARDD_LIFTBRIDGE_NATS_USER": ANONYMOUS,
            }
            server = held.enter_context(LiftbridgeServer(directory / "data", settings))
            yield Both(server, program.url, is_own=False)


def test_what_comes_over_nats_is_read_over_grpc_and_tcp(both: Both) -> None:
    async def publish() -> None:
        async with nats_client(both.url) as nats:
            acks = await nats.subscribe("_INBOX.my")
            await nats.flush()
            await nats.publish("in.nats", b"plain")
            await nats.publish("in.nats.1", envelope(b"in an envelope", "_INBOX.my", key=b"k", correlationId="c"))
            ack = await next_ack(acks)
            assert (ack.stream, ack.offset, ack.correlationId, ack.msgSubject) == ("from-nats", 0, "c", "in.nats.1")
            await nats.flush()

    with both.server.client() as client:
        client.create("from-nats", 2, subject="in.nats")
        with client.subscribe("from-nats") as plain, client.subscribe("from-nats", 1) as enveloped:
            asyncio.run(publish())
            assert [each.value for each in plain.messages(1)] == [b"plain"]
            [found] = enveloped.messages(1)
            assert (found.key, found.value, found.subject) == (b"k", b"in an envelope", "in.nats.1")
    with wire.connect(both.server.address) as tcp:
        polled = tcp.poll("liftbridge-default", "from-nats", 0, count=10)
        assert [each.payload for each in polled.messages] == [b"plain"]


def test_what_comes_over_grpc_is_heard_over_nats_and_stored_once(both: Both) -> None:
    async def scenario() -> None:
        async with nats_client(both.url) as nats:
            heard = await nats.subscribe("out.grpc")
            acks = await nats.subscribe("_INBOX.her")
            await nats.flush()
            await asyncio.to_thread(client.publish, "to-nats", b"v", key=b"k", ackInbox="_INBOX.her", correlationId="c")
            said = await heard.next_msg(timeout=30)
            assert said.data.startswith(b"\xb9\x0e\x43\xb4") and b"v" in said.data
            ack = await next_ack(acks)
            assert (ack.stream, ack.offset, ack.correlationId) == ("to-nats", 0, "c")

    with both.server.client() as client:
        client.create("to-nats", subject="out.grpc")
        asyncio.run(scenario())
        assert client.publish("to-nats", b"second").offset == 1
        assert [each.value for each in client.read("to-nats", 2)] == [b"v", b"second"]


def test_what_comes_over_grpc_is_heard_once_and_not_through_streams_that_may_not_store_it(both: Both) -> None:
    async def heard_by(subscription: Any) -> list[bytes]:
        """All that comes."""
        found = []
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                found.append((await subscription.next_msg(timeout=0.5)).data)
        return found

    async def scenario() -> None:
        async with (
            nats_client(both.url, user="owner", password="secret") as owner,
            nats_client(both.url, user="spy", password="secret") as spy,
        ):
            heard, spied = await owner.subscribe("leak.grpc"), await spy.subscribe("leak.*")
            await owner.flush()
            await spy.flush()
            await asyncio.to_thread(publish)
            found = await heard_by(heard)
            assert [len([each for each in found if value in each]) for value in VALUES] == [1] * 4, found
            assert len(await heard_by(spied)) == (0 if both.is_own else 4)  # a nats-server has its own rights

    def publish() -> None:
        with both.server.logged_in("sender") as sender:
            sender.publish("hers", VALUES[0])
            sender.publish_async([{"stream": "hers", "value": VALUES[1]}, {"stream": "hers", "value": VALUES[2]}])
            sender.call("PublishToSubject", subject="leak.grpc", value=VALUES[3])

    with both.server.client() as client:
        client.create("hers", subject="leak.grpc")
        client.create("shared", subject="leak.grpc")
        client.create("spying", subject="leak.*")
    both.server.create_user("sender", rights(both.server, hers=SEND, shared=SEND))
    both.server.create_user("owner", rights(both.server, hers=POLL, shared=POLL))
    both.server.create_user("spy", rights(both.server, spying=POLL))
    asyncio.run(scenario())


def rights(server: LiftbridgeServer, **named: TopicPermissions) -> Permissions:
    """Rights in streams of Liftbridge."""

    def number(code: int, *names: str) -> int:
        return int.from_bytes(tcp.request(code, b"".join(map(wire.identifier, names)))[:4], "little")

    native = "liftbridge-default"
    with wire.connect(server.address) as tcp:
        topics = {number(wire.GET_TOPIC, native, name): each for name, each in named.items()}
        return Permissions(streams=Map({number(wire.GET_STREAM, native): StreamPermissions(topics=Map(topics))}))


def test_a_creation_is_answered_when_nats_gets_there(both: Both) -> None:
    async def publish(subject: str) -> None:
        async with nats_client(both.url) as nats:
            await nats.publish(subject, b"at once")
            await nats.flush()

    with both.server.client() as client:
        for number in range(10):
            client.create(f"at-once-{number}", subject=f"at.once.{number}")
            asyncio.run(publish(f"at.once.{number}"))
            assert [each.value for each in client.read(f"at-once-{number}", 1)] == [b"at once"]


OUTWARD = ("events.>", "commands.all")
DROPPED = {"subjects that no setting names": 4, "acks beyond the inboxes": 4, "stored, on a subject of NATS itself": 6}


def dropped_outward(server: LiftbridgeServer) -> int:
    """As an operator sees it: of `shardd stats metrics`."""
    with wire.connect(server.address) as root:
        return figures_of(metrics(root))[0].get("liftbridge.outward.nats_lost", 0)


def test_a_client_cannot_speak_in_the_servers_name_beyond_the_settings(tmp_path: Path) -> None:
    """With the login of the server, at the released nats-server."""

    async def scenario(server: LiftbridgeServer, url: str) -> None:
        async with nats_client(url) as nats:
            heard = await nats.subscribe(">")
            await nats.flush()
            with server.logged_in("sender") as sender:
                await asyncio.to_thread(speak, sender)
            with server.logged_in("rightless") as rightless:
                statuses = [await asyncio.to_thread(status_of, rightless, each) for each in ("events.c", "payments.c")]
            assert statuses == ["DEADLINE_EXCEEDED", "PERMISSION_DENIED"]
            with server.logged_in("sender") as sender:
                await asyncio.to_thread(sender.call, "PublishToSubject", subject="end.of.stream", value=b"x")
            found = dict[str, int]()
            while "end.of.stream" not in found:
                subject = (await heard.next_msg(timeout=60)).subject
                found[subject] = found.get(subject, 0) + 1
            assert found == {
                "end.of.stream": 1,
                "events.a.b": 1,
                "events.c": 1,
                "commands.all": 1,
                "_INBOX.mine": 1,
                "acks.of.mine.1": 1,
            }

    def speak(sender: LiftbridgeClient) -> None:
        for subject in ("payments.do", "events", "events.a.b", "commands.all", "$SYS.REQ.SERVER.PING", "_INBOX.hers"):
            with contextlib.suppress(EndedError):  # no stream takes it
                sender.call("PublishToSubject", subject=subject, value=b"x", timeout_s=5)
        for inbox in ("payments.do", "_INBOX.mine", "acks.of.mine.1", "acks.of.minetoo", "$JS.API.INFO", "_INBOX"):
            sender.publish("last", ackInbox=inbox, ackPolicy=0)

    def status_of(sender: LiftbridgeClient, subject: str) -> str:
        with pytest.raises(EndedError) as ended:
            sender.call("PublishToSubject", subject=subject, value=b"x", timeout_s=5)
        return str(ended.value.status[0])

    with NatsServerProgram(tmp_path) as program:
        settings = {
            "SHARDD_LIFTBRIDGE_NATS_SERVERS": program.url,
            "SHARDD_LIFTBRIDGE_NATS_USER": ANONYMOUS,
            "SHARDD_LIFTBRIDGE_NATS_OUTWARD_SUBJECTS": ",".join(OUTWARD),
            "SHARDD_LIFTBRIDGE_NATS_ACK_INBOX_PREFIX": "acks.of.mine",
        }
        with LiftbridgeServer(tmp_path / "data", settings) as server:
            server.create_user("sender", Permissions(send_messages=True))
            server.create_user("rightless", Permissions())
            with server.client() as client:
                client.create("last", subject="$quiet")
                client.create("end", subject="end.of.stream")
            asyncio.run(scenario(server, program.url))
            wait_until(lambda: dropped_outward(server) >= sum(DROPPED.values()), str(DROPPED))
            assert dropped_outward(server) == sum(DROPPED.values())
