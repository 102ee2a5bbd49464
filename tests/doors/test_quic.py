"""The classic protocol over QUIC: what it serves, and that it is the same as over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from tests.doors.quic_server import QuicServer, batch, connected, request_frame
from tests.support import wire
from tests.support.serving import Serving


def fill(server: QuicServer) -> None:
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("shared"), "t", 2)


SERVER: Final = Serving(QuicServer, fill=fill)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def test_messages_go_both_ways_and_are_those_of_tcp(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            payloads = [b"%d" % number for number in range(100)]
            assert await client.send(0, 0, 0, payloads) == 0
            over_quic = await client.poll(0, 0, 0, 0, 1000)
        with wire.connect(server.address) as tcp:
            polled = tcp.poll(0, 0, 0, count=1000)
        assert [each.payload for each in polled.messages] == payloads
        assert over_quic[16:] == b"".join(each.raw for each in polled.messages)

    run(scenario())


def test_the_answers_of_every_reading_command_are_those_of_tcp(server: QuicServer) -> None:
    """Byte for byte."""
    topic = wire.identifier("shared") + wire.identifier("t")
    asked = [
        (wire.PING, b""), (wire.GET_STREAMS, b""), (wire.GET_STREAM, wire.identifier("shared")),
        (wire.GET_STREAM, wire.identifier("nothing")), (wire.GET_TOPIC, topic), (wire.GET_TOPICS, topic),
        (31, wire.identifier(0)), (32, b""), (41, b""), (601, topic), (600, topic + wire.identifier("nothing")),
        (21, struct.pack("<I", 1)), (12, b""), (121, b""), (101, b""), (100, b""), (999, b""), (302, b"\x00"),
        (wire.GET_STREAM, b"\x02\x00"), (503, b"\x01"), (wire.GET_OFFSET, wire.consumer() + topic + bytes(5)),
    ]  # fmt: skip

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            with wire.connect(server.address) as tcp:
                for code, payload in asked:
                    try:
                        expected = (0, tcp.request(code, payload))
                    except wire.StatusError as error:
                        expected = (error.status, b"")
                    assert await client.ask(code, payload) == expected, code

    run(scenario())


def test_changes_of_users_and_streams(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            assert (await client.done(wire.CREATE_STREAM, wire.str8("made")))[:4] != b""
            rights = bytes(10) + b"\x01" + struct.pack("<I", 0) + bytes(6) + b"\x00\x00"
            user = wire.str8("alice") + wire.str8("secret") + b"\x01" + b"\x01"
            user += struct.pack("<I", len(rights)) + rights
            assert b"alice" in await client.done(33, user)
            token = await client.done(wire.CREATE_TOKEN, wire.str8("door") + struct.pack("<Q", 0))
            async with connected(server.quic_address) as other:
                assert (await other.ask(wire.LOGIN_WITH_TOKEN, token))[0] == 0
                assert await other.login("alice", "secret") == 0
                assert (await other.ask(wire.GET_STREAMS))[0] == 41
                assert (await other.ask(wire.LOGOUT_USER)) == (0, b"")
                assert (await other.ask(wire.GET_STREAMS))[0] == 40
                assert await other.login("alice", "wrong") == 42

    run(scenario())


def test_without_a_login_there_is_ping_and_login(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.ask(wire.PING) == (0, b"")
            for code in (wire.GET_STREAMS, wire.GET_ME, wire.GET_STATS):
                assert (await client.ask(code))[0] == 40
            assert await client.send(0, 0, 0, [b"x"]) == 40
            assert (await client.ask(302, b"\x00"))[0] == 3  # decoded before the login is looked for

    run(scenario())


def test_alpn_is_neither_required_nor_offered(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.ask(wire.PING) == (0, b"")
            assert client._quic.tls.alpn_negotiated is None
        with pytest.raises(ConnectionError):  # who insists gives up by itself, as RFC 9001 has it
            async with connected(server.quic_address, alpn_protocols=["h3"]):
                pass

    run(scenario())


def test_requests_overlap_and_large_ones_get_through(server: QuicServer) -> None:
    """More than the window, many at a time: each is asked for as there is room."""

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            large = [bytes([number]) * 300_000 for number in range(5)]
            sent = [client.send(0, 0, 1, [each, each]) for each in large]
            assert await asyncio.gather(*sent, *(client.login() for _ in range(5))) == [0] * 10
            for _ in range(300):
                assert (await client.ask(wire.PING))[0] == 0
            small = [client.send(0, 0, 1, [b"y" * 1000] * 10) for _ in range(90)]
            assert await asyncio.gather(*small) == [0] * 90
            polled = await client.poll(0, 0, 1, 0, 10)
            assert len(polled) > 3_000_000

    run(scenario())


def test_what_is_too_large_is_answered_before_it_comes(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            login = client.write(struct.pack("<II", 1 << 20, wire.LOGIN_USER) + b"x" * 100, end=False)
            assert (await client.answer(login))[0] == 3
            assert await client.login() == 0
            send = client.write(struct.pack("<II", 8 << 20, wire.SEND_MESSAGES) + b"x" * 100, end=False)
            assert (await client.answer(send))[0] == 4022
            other = client.write(struct.pack("<II", 8 << 20, wire.CREATE_STREAM) + b"x" * 100, end=False)
            assert (await client.answer(other))[0] == 3
            for broken in (b"", b"\x04", struct.pack("<II", 3, 1), struct.pack("<II", 20, 1)):
                assert (await client.answer(client.write(broken)))[0] == 3, broken
            assert (await client.ask(wire.PING))[0] == 0

    run(scenario())


def test_a_frame_may_come_in_pieces_and_is_answered_before_the_end(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            frame = request_frame(wire.PING)
            stream = client.write(frame[:1], end=False)
            for byte in frame[1:]:
                await asyncio.sleep(0.01)
                client.write(bytes([byte]), end=False, stream_id=stream)
            assert await client.answer(stream) == (0, b"")
            client.write(frame, end=True, stream_id=stream)  # behind the answer: nobody reads it
            assert (await client.ask(wire.PING))[0] == 0

    run(scenario())


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (struct.pack("<II", 8 << 20, wire.SEND_MESSAGES), 4022),
        (struct.pack("<II", 8 << 20, wire.CREATE_STREAM), 3),
        (request_frame(wire.PING), 0),
    ],
    ids=["a-batch-too-large", "a-command-too-large", "bytes-behind-a-frame"],
)
def test_window_of_a_connection_is_granted_again_for_what_is_dropped(
    head: bytes, status: int, server: QuicServer
) -> None:
    """Four windows of bytes that the door does not keep, in packets of their own behind those it answers."""

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            for _ in range(100):
                stream = client.write(head, end=False)
                client.write(b"x" * 4_000, stream_id=stream)
                assert (await client.answer(stream, 20))[0] == status
            assert (await client.ask(wire.PING))[0] == 0

    run(scenario())


def test_window_is_granted_again_for_streams_that_are_reset_behind_a_gap(server: QuicServer) -> None:
    """The first packet of each request is lost, and its client gives it up."""

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            for _ in range(150):
                client.lose(1)
                stream = client.write(request_frame(wire.CREATE_STREAM, b"x" * 4_000), end=False)
                client.reset(stream)
                assert (await client.ask(wire.PING, timeout_s=20))[0] == 0

    run(scenario())


def test_client_that_wants_no_answer_to_a_whole_request_keeps_its_connection(server: QuicServer) -> None:
    """The workers stand still, so that the stream is over both ways before there is an answer."""

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            await client.done(wire.CREATE_STREAM, wire.str8("unread"))
            workers = server.worker_pids()
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            try:
                for _ in range(3):
                    stream = client.write(request_frame(wire.SEND_MESSAGES, b"\4\0\0\0" + b"x" * 60_000))
                    client.stop(stream)
                    with pytest.raises(ConnectionError):
                        await client.answer(stream)
                await asyncio.sleep(0.5)  # the door has the acknowledgements
            finally:
                for pid in workers:
                    os.kill(pid, signal.SIGCONT)
            assert (await client.ask(wire.PING))[0] == 0
            assert client.closed_with is None

    run(scenario())


def test_groups_are_made_but_not_joined(server: QuicServer) -> None:
    async def scenario() -> None:
        topic = wire.identifier("shared") + wire.identifier("t")
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            assert b"workers" in await client.done(602, topic + wire.str8("workers"))
            assert b"workers" in await client.done(600, topic + wire.identifier("workers"))
            assert (await client.ask(604, topic + wire.identifier("workers")))[0] == 5
            assert await client.done(603, topic + wire.identifier("workers")) == b""

    run(scenario())


def test_clients_are_told_of_it(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            me = await client.done(wire.GET_ME)
            assert me[8] == 2  # QUIC
            nodes = await client.done(12)
            assert struct.pack("<H", server.quic_address[1]) in nodes
            assert (await client.ask(wire.SEND_MESSAGES, batch(0, 9, 0, [b"x"])))[0] == 2010
            assert (await client.ask(wire.SEND_MESSAGES, batch(0, 0, 9, [b"x"])))[0] == 3007

    run(scenario())


def test_a_user_that_is_deleted_is_out(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as root, connected(server.quic_address) as client:
            assert await root.login() == 0
            await root.done(33, wire.str8("leaver") + wire.str8("secret") + b"\x01\x00")
            assert await client.login("leaver", "secret") == 0
            await root.done(34, wire.identifier("leaver"))
            with contextlib.suppress(ConnectionError):  # the answer, or the end of the connection
                assert (await client.ask(wire.GET_STREAMS))[0] in (40, 41, 100)

    run(scenario())


def test_off_by_default_and_refused_without_its_library(tmp_path: Path) -> None:
    from shardd.cli.doors import doors_of
    from shardd.config.loader import load_settings

    assert doors_of(load_settings(None, {}).settings) == []
    [door] = doors_of(load_settings(None, {"IGGY_QUIC_ENABLED": "true"}).settings)
    assert door.addresses == {"quic.address": "127.0.0.1:8080"}
