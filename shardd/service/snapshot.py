"""GET_SNAPSHOT: code 11 (docs/protocol/system.md#get-snapshot): a ZIP archive in memory, one `<type>.txt` for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from shardd.protocol.account_requests import GetSnapshot, SnapshotCompression, SnapshotType
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.helper_threads import HelperThreads
from shardd.security import Rule
from shardd.service import base, snapshot_members
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.snapshot_archive import make_archive

METHOD_LOGS: Final = "recent logs"
TEST_TEXT: Final = "test"
RUNTIME_CONFIG: Final = "current_config.toml"
_ALL: Final = (
    SnapshotType.FILESYSTEM_OVERVIEW,
    SnapshotType.PROCESS_LIST,
    SnapshotType.RESOURCE_USAGE,
    SnapshotType.SERVER_LOGS,
    SnapshotType.SERVER_CONFIG,
)
_lines_decoder = msgspec.msgpack.Decoder(list[str])
_encoder = msgspec.msgpack.Encoder()
_log = logging.getLogger(__name__)

Collector = Callable[[], str]


class SnapshotService:
    """Collects in a thread of its own, one snapshot at a time. Lives on the loop thread."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        context.bus.serve(METHOD_LOGS, Senders.ANY_SHARD, self._serve_logs)

    async def _serve_logs(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode(self._context.recent_logs.lines())

    async def get_snapshot(self, context: ShardContext, caller: Caller, request: GetSnapshot) -> bytes:
        """41 without the right to read the server. A member that cannot be collected is left out."""
        base.require(context, caller, Rule.READ_SERVER)
        types = _ALL if SnapshotType.ALL in request.types else request.types
        logs = await self._server_logs() if SnapshotType.SERVER_LOGS in types else ""
        async with self._turn:
            threads = HelperThreads(1, "snapshot")
            try:
                return await threads.run(collect_archive, self._collectors(types, logs), request.compression)
            finally:
                await threads.close()

    async def _server_logs(self) -> str:
        """The newest lines of the supervisor and of all live shards in the order of their times."""
        ask = self._context.supervisor_logs
        supervisor = await ask() if ask is not None else []
        try:
            answers = await self._context.bus.gather(METHOD_LOGS, b"")
        except BusError as error:
            _log.warning("a snapshot has the logs of one shard only: %s", error)
            answers = [await self._serve_logs(self._context.shard, b"")]
        lines = sorted(supervisor + [line for answer in answers for line in _lines_decoder.decode(answer)])
        return "".join(f"{line}\n" for line in lines)

    def _collectors(self, types: tuple[SnapshotType, ...], logs: str) -> list[tuple[str, Collector]]:
        system = self._context.settings.system
        collectors: dict[SnapshotType, Collector] = {
            SnapshotType.FILESYSTEM_OVERVIEW: lambda: snapshot_members.filesystem_overview(system.data_directory),
            SnapshotType.PROCESS_LIST: snapshot_members.process_list,
            SnapshotType.RESOURCE_USAGE: snapshot_members.resource_usage,
            SnapshotType.TEST: lambda: TEST_TEXT,
            SnapshotType.SERVER_LOGS: lambda: logs,
            SnapshotType.SERVER_CONFIG: lambda: snapshot_members.server_config(
                system.runtime_directory / RUNTIME_CONFIG
            ),
        }
        return [(f"{kind.name.lower()}.txt", collectors[kind]) for kind in types]


def collect_archive(members: list[tuple[str, Collector]], compression: SnapshotCompression) -> bytes:
    """Blocks."""
    texts: dict[str, bytes] = {}
    for name, collect in dict(members).items():  # what is asked for twice is collected once
        try:
            texts[name] = collect().encode(errors="replace")
        except Exception:
            _log.exception("a snapshot comes without %s", name)
    return make_archive([(name, texts[name]) for name, _ in members if name in texts], compression)
