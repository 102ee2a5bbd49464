"""Snapshots of the server's own state (docs/protocol/system.md#get-snapshot): a ZIP archive in memory, one `<type>.txt`
for each."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from shardd.config.schema import System
from shardd.metadata import Metadata
from shardd.protocol.account_requests import GetSnapshot, SnapshotCompression, SnapshotType
from shardd.runtime.bus import Bus
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.fair_turns import FairTurns
from shardd.runtime.helper_threads import HelperThreads
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity

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
OwnLogs = Callable[[], list[str]]  # the newest lines of this worker
SupervisorLogs = Callable[[], Awaitable[list[str]]]


class SnapshotService:
    """Collects in a thread of its own, one snapshot at a time, users in turns. Lives on the loop thread."""

    def __init__(
        self, metadata: Metadata, bus: Bus, settings: System, own_logs: OwnLogs, supervisor_logs: SupervisorLogs
    ) -> None:
        self._metadata = metadata
        self._bus = bus
        self._settings = settings
        self._own_logs = own_logs
        self._supervisor_logs = supervisor_logs
        self._turns = FairTurns(1)
        bus.serve(METHOD_LOGS, Senders.ANY_SHARD, self._serve_logs)

    async def _serve_logs(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode(self._own_logs())

    async def get_snapshot(self, identity: Identity, request: GetSnapshot) -> bytes:
        """The archive; 41 without the right to read the server. A member that cannot be collected is left out."""
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        types = _ALL if SnapshotType.ALL in request.types else request.types
        async with self._turns.turn((str(identity.user),)):
            logs = await self._server_logs() if SnapshotType.SERVER_LOGS in types else ""
            threads = HelperThreads(1, "snapshot")
            try:
                return await threads.run(self._archive, types, logs, request.compression)
            finally:
                await threads.close()

    async def _server_logs(self) -> str:
        """The newest lines of the supervisor and of all live shards in the order of their times."""
        supervisor = await self._supervisor_logs()
        try:
            answers = await self._bus.gather(METHOD_LOGS, b"")
        except BusError as error:
            _log.warning("a snapshot has the logs of one shard only: %s", error)
            answers = [await self._serve_logs(self._bus.shard, b"")]
        lines = sorted(supervisor + [line for answer in answers for line in _lines_decoder.decode(answer)])
        return "".join(f"{line}\n" for line in lines)

    def _archive(self, types: tuple[SnapshotType, ...], logs: str, compression: SnapshotCompression) -> bytes:
        """Blocks; the imports of a first snapshot take longer than the loop may be held."""
        return collect_archive(self._collectors(types, logs), compression)

    def _collectors(self, types: tuple[SnapshotType, ...], logs: str) -> list[tuple[str, Collector]]:
        from shardd.service import snapshot_members  # with what only snapshots need, as psutil

        collectors: dict[SnapshotType, Collector] = {
            SnapshotType.FILESYSTEM_OVERVIEW: lambda: snapshot_members.filesystem_overview(
                self._settings.data_directory
            ),
            SnapshotType.PROCESS_LIST: snapshot_members.process_list,
            SnapshotType.RESOURCE_USAGE: snapshot_members.resource_usage,
            SnapshotType.TEST: lambda: TEST_TEXT,
            SnapshotType.SERVER_LOGS: lambda: logs,
            SnapshotType.SERVER_CONFIG: lambda: snapshot_members.server_config(
                self._settings.runtime_directory / RUNTIME_CONFIG
            ),
        }
        return [(f"{kind.name.lower()}.txt", collectors[kind]) for kind in types]


def collect_archive(members: list[tuple[str, Collector]], compression: SnapshotCompression) -> bytes:
    """Blocks."""
    from shardd.service.snapshot_archive import make_archive  # with the modules of all compressions

    texts: dict[str, bytes] = {}
    for name, collect in dict(members).items():  # what is asked for twice is collected once
        try:
            texts[name] = collect().encode(errors="replace")
        except Exception:
            _log.exception("a snapshot comes without %s", name)
    return make_archive([(name, texts[name]) for name, _ in members if name in texts], compression)
