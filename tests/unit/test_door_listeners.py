"""Addresses of doors: held by one server, and free again for the next one."""

from __future__ import annotations

import socket

import pytest

from shardd.server.door_listeners import DoorListeners
from shardd.server.errors import StartupError

SETTINGS = ("http.address", "liftbridge.address")


def with_a_connection_that_lingers() -> int:
    """A port whose listener has gone, while a connection that it closed first is in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()
            assert client.recv(1) == b""
    return port


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_server_starts_where_connections_of_the_one_before_it_linger(setting: str) -> None:
    port = with_a_connection_that_lingers()
    with pytest.raises(OSError, match="in use"), socket.socket() as plain:
        plain.bind(("127.0.0.1", port))  # it does linger
    listeners = DoorListeners({"door": {setting: f"127.0.0.1:{port}"}})
    try:
        assert listeners.actual == {setting: f"127.0.0.1:{port}"}
    finally:
        listeners.close()


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_address_that_somebody_listens_at_is_refused(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"{setting}: cannot listen on {address}"):
            DoorListeners({"door": {setting: address}})
