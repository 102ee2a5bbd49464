"""The client of a server: everything that can be asked, and producers and consumers on connections of their own."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from shardd.client.admin import Administration
from shardd.client.commands import Command
from shardd.client.session import Session
from shardd.client.settings import Settings, resolve

if TYPE_CHECKING:
    from shardd.client.telemetry import Telemetry

T = TypeVar("T")


class Client(Administration):
    """`async with Client("shardd://name:password@host") as client:` connects at the first request, or by `connect`.

    Used by the tasks of one event loop; requests of several tasks share the connection and its window."""

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, telemetry: Telemetry | None = None
    ) -> None:
        """`url`, or what `settings.resolve` finds; `telemetry`: spans of what is asked and sent. SettingsError."""
        self.settings = settings or resolve(url)
        self.telemetry = telemetry
        self.session = Session(self.settings, refuses_at_once=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self, deadline_s: float | None = None) -> None:
        """Connects and logs in now. ClientError."""
        await self.session.link(self.session.until(deadline_s))

    async def call(self, command: Command[T], deadline_s: float | None = None) -> T:
        """The answer of any command of `shardd.client.commands`. ClientError."""
        if self.telemetry is None:
            return await self.session.call(command, deadline_s)
        with self.telemetry.command(command.code, self.settings):
            return await self.session.call(command, deadline_s)

    async def close(self) -> None:
        await self.session.close()
