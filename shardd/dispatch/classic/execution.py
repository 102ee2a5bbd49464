"""How a command is executed: what all dialects do alike, and the one way of a command with a classic payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from shardd.dispatch.classic.commands import Command, command_table, door_table
from shardd.metadata import Metadata
from shardd.protocol.catalogue import COMMANDS, decode
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Payload
from shardd.runtime.threads import Threads
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import ByEngine
from shardd.service.identity import Identity
from shardd.service.services import Services

_LARGE_BYTES: Final = 4096  # of a payload; what small ones cost is the same for everybody
T = TypeVar("T")


class Execution:
    """Long requests are decoded only for users with the right to make them, and long answers are encoded in a helper
    thread. Lives on the loop thread."""

    def __init__(self, metadata: Metadata, threads: Threads) -> None:
        self._metadata = metadata
        self._threads = threads

    async def decoded(self, identity: Identity, code: int, size: int, read: Callable[[], T]) -> T:
        """The request that `read` decodes from a payload of `size` bytes. `ShardError` 41: a long one needs a right."""
        entry = COMMANDS.get(code)
        if size <= _LARGE_BYTES or entry is None or not entry.rights_first or identity.user_id is None:
            return read()
        base.require(self._metadata.state, identity, Rule.MANAGE_USERS)
        return await self._threads.run(read)

    async def encoded(self, command: Command[Any, Any], value: Any) -> bytes | None:
        """The payload of the answer; None: the engine answers."""
        if isinstance(value, ByEngine):
            return None
        return await self._threads.run(command.encode, value) if command.is_large(value) else command.encode(value)


class ClassicCommands:
    """Executes commands with classic payloads. Lives on the loop thread."""

    def __init__(self, metadata: Metadata, services: Services) -> None:
        self._execution = Execution(metadata, services.threads)
        self._of_connections: Final = command_table(services)
        self._of_doors: Final = self._of_connections | door_table(services)

    async def run(self, identity: Identity, code: int, payload: Payload, door: str = "") -> bytes | None:
        """Decoding, login check, service, encoding, in this order (docs/protocol/framing.md#checks). The payload of
        the answer, or `ShardError`; None: the engine answers. `door`: the kind of the door whose client asks."""
        request = await self._execution.decoded(identity, code, len(payload), lambda: decode(code, payload, door))
        if identity.user_id is None and not COMMANDS[code].before_login:
            raise ShardError(Status.UNAUTHENTICATED)
        command = (self._of_doors if door else self._of_connections)[code]
        answer = await self._execution.encoded(command, await command.execute(identity, request))
        if answer is None and door:
            raise RuntimeError(f"command {code} was left to the engine, which has no such connection")
        return answer
