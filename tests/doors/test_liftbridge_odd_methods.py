"""Calls of HTTP/2 whose path is not the name of a method, nor a text: the door goes on."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

import pytest

from tests.doors.liftbridge_server import LiftbridgeServer
from tests.fuzz.grpc_door import call_of
from tests.support.serving import Serving

SERVER: Final = Serving(LiftbridgeServer)


@pytest.mark.parametrize("path", [b"/proto.API/\xbcPublish", b"/\xff", b"\xff", b"/proto.API/\xed\xa0\x80"])
def test_call_of_a_method_that_is_not_utf_8_leaves_the_door_to_others(path: bytes, server: LiftbridgeServer) -> None:
    door = server.door().pid
    with server.client() as client:
        client.call("FetchMetadata")
        host, _, port = server.liftbridge_address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as stranger:
            stranger.sendall(call_of(path, b""))
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(65_536):
                    pass
        client.call("FetchMetadata")
    with server.client() as another:
        another.call("FetchMetadata")
    assert server.door().pid == door
