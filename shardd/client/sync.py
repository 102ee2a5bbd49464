"""The same for threads: an event loop in a thread of its own does the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from shardd.client.admin import SyncAdministration
from shardd.client.client import Client
from shardd.client.closing import Closing
from shardd.client.commands import Command
from shardd.client.errors import ClosedError
from shardd.client.settings import Settings, resolve

if TYPE_CHECKING:
    from shardd.client.telemetry import Telemetry

T = TypeVar("T")


class Portal:
    """An event loop in a thread. What waits there ends with it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="shardd-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for it; an interrupt of the waiting thread cancels it. ClosedError."""
        if not self._thread.is_alive():
            coroutine.close()
            raise ClosedError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


class SyncClient(Closing, SyncAdministration):
    """`with SyncClient("shardd://name:password@host") as client:`; for any thread, also several at a time."""

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, telemetry: Telemetry | None = None
    ) -> None:
        """`url`, or what `settings.resolve` finds; `telemetry`: spans of what is asked and sent. SettingsError."""
        self.settings = settings or resolve(url)
        self._telemetry = telemetry
        self.portal = Portal()
        self.client = self.portal.run(self._make())

    async def _make(self) -> Client:
        return Client(settings=self.settings, telemetry=self._telemetry)

    def connect(self, deadline_s: float | None = None) -> None:
        """Connects and logs in now. ClientError."""
        self.portal.run(self.client.connect(deadline_s))

    def call(self, command: Command[T], deadline_s: float | None = None) -> T:
        """The answer of any command of `shardd.client.commands`. ClientError."""
        return self.portal.run(self.client.call(command, deadline_s))

    def close(self) -> None:
        try:
            self.portal.run(self.client.close())
        except ClosedError:
            return
        self.portal.close()
