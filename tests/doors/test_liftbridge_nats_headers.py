"""Headers of NATS: stored as user headers, and heard by clients that take headers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shardd.client.messages import headers_of
from shardd.protocol.liftbridge.nats_headers import user_headers
from shardd.protocol.nats import HEADERS_BYTES_MAX, NatsError, Pub, Requests
from tests.doors.nats_peers import RIGHTS, NatsDoor, envelope, nats_client
from tests.support.on_loop import on_loop

BOUND_S = 60


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsDoor]:
    with NatsDoor(tmp_path_factory.mktemp("nats") / "data") as server:
        server.make_writer()
        server.make_writer("reader", {**RIGHTS, "send_messages": False})
        yield server


@on_loop
async def test_headers_of_a_message_are_stored_as_user_headers(door: NatsDoor) -> None:
    stream = door.make_stream("kept", "kept.in")
    long = "x" * 1_000
    async with nats_client(door.url) as client:
        said = {"kind": "order", "Nats-Msg-Id": "7", "subject": "s", "reply": "r", "lb.key": "mine", "empty": ""}
        await client.publish("kept.in", b"one", headers=said)
        await client.publish("kept.in", b"two", headers={"long": long})
        both = envelope(b"three", headers={"kind": b"inner"})
        await client.publish("kept.in", both, headers={"kind": "outer", "more": "yes"})
        await client.publish("kept.in", b"four", headers={"Nats-Msg-Id": "7"})
        await client.flush()
    async with asyncio.timeout(BOUND_S):
        while len(found := await asyncio.to_thread(door.stored, stream)) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [each["payload"] for each in found] == [b"one", b"two", b"three", b"four"]  # Nats-Msg-Id means nothing
    one = headers_of(found[0]["user_headers"])
    kept = {"kind": b"order", "Nats-Msg-Id": b"7", "nats.subject": b"s", "nats.reply": b"r", "lb.h.lb.key": b"mine"}
    assert {name: one.get(name) for name in kept} == kept
    assert headers_of(found[2]["user_headers"]) == {"kind": b"inner", "more": b"yes"}


@on_loop
async def test_repeated_header_is_one_user_header_of_lines(door: NatsDoor) -> None:
    stream = door.make_stream("repeated", "repeated.in")
    host, _, port = door.url.removeprefix("nats://").rpartition("@")[2].rpartition(":")
    login = door.url.removeprefix("nats://").rpartition("@")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    block = b"NATS/1.0\r\na: 1\r\nb:2\r\na: 3\r\nno header\r\n\r\n"
    user = b'"user":"%b","pass":"%b",' % tuple(map(str.encode, login)) if len(login) == 2 else b""
    writer.write(b'CONNECT {%b"verbose":false}\r\n' % user)
    writer.write(
        b"SUB repeated.in 1\r\nHPUB repeated.in %d %d\r\n%bx\r\nPING\r\n" % (len(block), len(block) + 1, block)
    )
    async with asyncio.timeout(BOUND_S):
        assert (await reader.readline()).startswith(b"INFO ")
        while not (line := await reader.readline()).startswith(b"MSG "):
            assert line == b"PONG\r\n"
        assert line == b"MSG repeated.in 1 1\r\n"  # it has not said that it takes headers
        assert await reader.readline() == b"x\r\n"
    writer.close()
    (found,) = await asyncio.to_thread(door.stored, stream)
    assert headers_of(found["user_headers"]) == {"a": b"1\n3", "b": b"2"}


@on_loop
async def test_subscriber_that_takes_headers_hears_them(door: NatsDoor) -> None:
    door.make_stream("heard", "heard.in")
    async with nats_client(door.url) as client:
        for subject in ("heard.in", "of.no.stream"):
            subscription = await client.subscribe(subject)
            await client.publish(subject, b"x", reply="back", headers={"a": "1", "Nats-Rollup": "all"})
            await client.publish(subject, b"y")
            first = await subscription.next_msg(BOUND_S)
            assert (first.data, first.reply, first.headers) == (b"x", "back", {"a": "1", "Nats-Rollup": "all"})
            second = await subscription.next_msg(BOUND_S)
            assert (second.data, second.headers) == (b"y", None)


def test_headers_that_are_none_leave_the_rest() -> None:
    assert user_headers(b"NATS/1.0\r\n\r\n") == {}
    assert user_headers(b"NATS/1.0 503 No Responders\r\n\r\n") == {}
    assert user_headers(b"anything") == {}
    assert user_headers(b"NATS/1.0\r\n:v\r\n x : y z \r\n\xff:\x00\r\n\r\n") == {"x": b"y z", "\ufffd": b"\x00"}
    block = b"NATS/1.0\r\n" + b"a:" + b"v" * (HEADERS_BYTES_MAX - 16) + b"\r\n\r\n"
    assert len(block) == HEADERS_BYTES_MAX
    requests = Requests(1 << 20)
    requests.feed(b"HPUB s %d %d\r\n%b\r\n" % (len(block), len(block), block))
    assert requests.take() == Pub("s", "", b"", block)
    requests.feed(b"HPUB s %d %d\r\n" % (len(block) + 1, len(block) + 1))
    with pytest.raises(NatsError, match="Maximum Headers Violation"):
        requests.take()
