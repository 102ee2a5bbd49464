"""Clients of a server, of the standard library alone. `Client` is for asyncio, `SyncClient` the same for threads
(docs/adr/0052-the-client.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shardd.client.client import Client as Client
    from shardd.client.consumer import Consumer as Consumer
    from shardd.client.messages import Message as Message
    from shardd.client.outbox import Position as Position
    from shardd.client.producer import Producer as Producer
    from shardd.client.settings import Settings as Settings
    from shardd.client.sync import SyncClient as SyncClient
    from shardd.client.sync_streams import SyncConsumer as SyncConsumer
    from shardd.client.sync_streams import SyncProducer as SyncProducer

_HOMES: Final = {
    "Client": "client",
    "Consumer": "consumer",
    "Position": "outbox",
    "Producer": "producer",
    "Message": "messages",
    "Settings": "settings",
    "SyncClient": "sync",
    "SyncConsumer": "sync_streams",
    "SyncProducer": "sync_streams",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: who uses one of them does not pay for the others."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
