"""The sockets for clients that come over WebSocket: one for each shard at an address of their own, as for TCP."""

from __future__ import annotations

import socket

import msgspec

from shardd.config.schema import Settings
from shardd.server.address_lock import AddressLock, lock_address
from shardd.server.errors import StartupError
from shardd.server.listeners import open_listeners


class WebSocketListeners(msgspec.Struct):
    """`of[i]` is None once shard i is given up. `address`: the actual one."""

    of: list[socket.socket | None]
    address: str
    lock: AddressLock

    def fileno(self, shard: int) -> int:
        """-1: there is none."""
        listener = self.of[shard]
        return -1 if listener is None else listener.fileno()

    def close_one(self, shard: int) -> None:
        listener = self.of[shard]
        if listener is not None:
            listener.close()
            self.of[shard] = None

    def close(self) -> None:
        for shard in range(len(self.of)):
            self.close_one(shard)
        self.lock.close()


def open_websocket_listeners(settings: Settings, shards: int) -> WebSocketListeners | None:
    """None when there are to be none. Options of the sockets are those of TCP. Raises StartupError."""
    websocket = settings.websocket
    if not websocket.enabled:
        return None
    lock = lock_address(websocket.address) if not websocket.address.endswith(":0") else None
    try:
        listeners, address = open_listeners(msgspec.structs.replace(settings.tcp, address=websocket.address), shards)
    except StartupError as error:
        if lock is not None:
            lock.close()
        raise StartupError(f"websocket.address: {error}") from error
    return WebSocketListeners([*listeners], address, lock if lock is not None else lock_address(address))
