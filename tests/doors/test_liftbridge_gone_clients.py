"""Clients of gRPC that are gone before they can be told of an error: strangers write no flood of lines into the log."""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Final

import pytest

from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import ROOT, LiftbridgeServer
from tests.doors.liftbridge_wire import PREFACE, SETTINGS_TAKEN, frame, opened, request_frames
from tests.support.serving import Serving
from tests.support.stalls import wait_until

CALLS: Final = 40  # below what makes an address loud
CONNECTIONS: Final = 10
WRONG: Final = [("authorization", "Basic " + base64.b64encode(b"iggy:wrong").decode())]
RST: Final = 3
SERVICE: Final = f"/{api.SERVICE}"
ENDINGS: Final[dict[str, tuple[str, Sequence[tuple[str, str]]]]] = {
    "no such method": (f"{SERVICE}/None", []),
    "no such service": ("/none/None", []),
    "a wrong password": (f"{SERVICE}/FetchMetadata", WRONG),
    "no login": (f"{SERVICE}/FetchMetadata", [("authorization", "x")]),
    "an unreadable request": (f"{SERVICE}/Subscribe", [ROOT]),
    "a missing stream": (f"{SERVICE}/Publish", [ROOT]),
    "a watch of health": ("/grpc.health.v1.Health/Watch", []),
    "a subscription": (f"{SERVICE}/Subscribe", [ROOT]),
    "a session of acks": (f"{SERVICE}/PublishAsync", [ROOT]),
    "a large answer": (f"{SERVICE}/FetchMetadata", [ROOT]),
}
REQUESTS: Final[dict[str, bytes]] = {
    "an unreadable request": b"\xff",
    "a subscription": api_messages.SubscribeRequest(stream="s", startPosition=2).SerializeToString(),
    "a session of acks": api_messages.PublishRequest(stream="s", value=b"x").SerializeToString(),
    "a large answer": api_messages.FetchMetadataRequest(streams=["s"] * 5000).SerializeToString(),
}
MESSAGES: Final = 200


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        root.create("s")
        root.publish_async([{"stream": "s", "value": bytes(8_000)}] * MESSAGES)


SERVER: Final = Serving(LiftbridgeServer, {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": ""}, fill=fill)


def calls(path: str, metadata: Sequence[tuple[str, str]], request: bytes, given_up: bool) -> bytes:
    sent = b""
    for stream in range(1, 2 * CALLS, 2):
        sent += opened(path, stream, metadata) + request_frames(stream, request)
        if given_up:
            sent += frame(RST, 0, stream, struct.pack(">I", 8))
    return sent


@pytest.mark.parametrize("given_up", [True, False], ids=["calls given up", "connections closed"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_clients_that_are_gone_before_their_error_write_no_lines(
    server: LiftbridgeServer, ending: str, given_up: bool
) -> None:
    path, metadata = ENDINGS[ending]
    host, _, port = server.liftbridge_address.rpartition(":")
    before = len(server.log().splitlines())
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTIONS):
            client = held.enter_context(socket.create_connection((host, int(port)), timeout=60))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            client.sendall(PREFACE + SETTINGS_TAKEN + calls(path, metadata, REQUESTS.get(ending, b""), given_up))
            if not given_up:
                client.recv(1)  # the server has begun
    with server.client(ROOT) as other:
        wait_until(lambda: other.status("FetchMetadata") == ("OK", ""), "the door serves")
    lines = server.log().splitlines()[before:]
    assert len(lines) <= 2 and not any("Traceback" in each for each in lines), "\n".join(lines)
