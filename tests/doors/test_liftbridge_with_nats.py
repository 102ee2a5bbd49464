"""gRPC and NATS in one door: a message that comes in one way goes out the other, with the released nats-server and with
the door's own."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.doors.liftbridge_server import ANONYMOUS, HOST, LiftbridgeServer
from tests.doors.nats_peers import NatsServerProgram, envelope, nats_client, next_ack
from tests.support import wire


class Both:
    """`url`: where NATS clients connect."""

    def __init__(self, server: LiftbridgeServer, url: str) -> None:
        self.server = server
        self.url = url


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
            yield Both(server, f"nats://{written['liftbridge']['nats_server']['address']}")
        else:
            program = held.enter_context(NatsServerProgram(directory))
            settings = {
                "SHARDD_LIFTBRIDGE_NATS_SERVERS": program.url,
                "SHARDD_LIFTBRIDGE_NATS_USER": ANONYMOUS,
            }
            server = held.enter_context(LiftbridgeServer(directory / "data", settings))
            yield Both(server, program.url)


def test_what_comes_over_nats_is_read_over_grpc_and_tcp(both: Both) -> None:
    async def publish() -> None:
        async with nats_client(both.url) as nats:
            acks = await nats.subscribe("my.acks")
            await nats.flush()
            await nats.publish("in.nats", b"plain")
            await nats.publish("in.nats.1", envelope(b"in an envelope", "my.acks", key=b"k", correlationId="c"))
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
            acks = await nats.subscribe("her.acks")
            await nats.flush()
            await asyncio.to_thread(client.publish, "to-nats", b"v", key=b"k", ackInbox="her.acks", correlationId="c")
            said = await heard.next_msg(timeout=30)
            assert said.data.startswith(b"\xb9\x0e\x43\xb4") and b"v" in said.data
            ack = await next_ack(acks)
            assert (ack.stream, ack.offset, ack.correlationId) == ("to-nats", 0, "c")

    with both.server.client() as client:
        client.create("to-nats", subject="out.grpc")
        asyncio.run(scenario())
        assert client.publish("to-nats", b"second").offset == 1
        assert [each.value for each in client.read("to-nats", 2)] == [b"v", b"second"]


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
