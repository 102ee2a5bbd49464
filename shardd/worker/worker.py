"""One worker: a loop thread that alone touches the partitions of its shard (docs/ARCHITECTURE.md).

Order of the start: engine, bus, metadata, partitions, services, then the listener. A worker that dies is started again
and goes through the same door; what its predecessor had not taken from the rings is served by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final

from shardd.engine import (
    AcceptedEvent,
    CallEvent,
    CertifiedEvent,
    ClosedEvent,
    DoubtEvent,
    GroupPolledEvent,
    MovedInEvent,
    MoveEvent,
    PoisonedEvent,
    RequestEvent,
    ResumedEvent,
    RolledEvent,
    RoomEvent,
    RouteMissEvent,
    SyncedEvent,
    owner,
)
from shardd.engine.loop import Event, new_event_loop
from shardd.log.foreign import sweep_streams
from shardd.maintenance.compressor import Compressor
from shardd.maintenance.damage_surveys import DamageSurveys
from shardd.maintenance.flush import flush_everything
from shardd.maintenance.retention import Retention
from shardd.maintenance.scheduler import JobScheduler
from shardd.maintenance.scrubber import Scrubber
from shardd.maintenance.sealer import Sealer
from shardd.metadata import Record, State
from shardd.protocol.catalogue import command_name
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import namespace, partition_text
from shardd.runtime.bus import Bus
from shardd.runtime.bus_sockets import TrustedSockets
from shardd.runtime.collector import Collector
from shardd.runtime.control_link import ControlLink
from shardd.runtime.helper_threads import HelperThreads
from shardd.runtime.inheritance import WorkerInheritance
from shardd.runtime.loop_watch import watch_of
from shardd.runtime.metrics import MetricRegistry, StallFigures, process_counters, process_gauges
from shardd.runtime.patience import Patience
from shardd.runtime.recent_logs import RecentLogs
from shardd.runtime.trust import Trust
from shardd.security import Passwords
from shardd.security.login_turns import LoginTurns
from shardd.service.lease_table import Leases
from shardd.service.services import ServiceParts, Services, add_told_figures
from shardd.service.sessions import SessionTable
from shardd.worker.background import add_room_job, service_jobs, tell_room
from shardd.worker.dispatcher import MakeDispatcher
from shardd.worker.doors import DoorParts, MakeDoorEndpoint, WorkerDoors
from shardd.worker.engine_options import connection_calls, listen, make_engine, server_facts
from shardd.worker.owners import follow_owners
from shardd.worker.partition_changes import partitions_of
from shardd.worker.partitions import RECOVERY_LANES, OwnedPartitions
from shardd.worker.roles import ControlRole, FollowerRole, Role, is_control_shard
from shardd.worker.tls import WorkerTls

_log = logging.getLogger(__name__)
_STOP_RESERVE_S: Final = 2.0  # of the time the supervisor gives: for flushing
_QUIET_S: Final = 0.2  # peers may still be forwarding to us
_HELPER_THREADS: Final = 2  # disk and metadata
# A hash computes for 10 ms on the CPU of the loop: one at a time, the loop first (benchmarks.md). Not SCHED_IDLE: the
# thread holds the lock of the interpreter between two hashes, and must come to run again.
_PASSWORD_THREADS: Final = 1
_PASSWORD_NICE: Final = 10


def run(inheritance: WorkerInheritance, make_dispatcher: MakeDispatcher, make_doors: MakeDoorEndpoint) -> int:
    """Serves until the supervisor says stop; exit status."""
    worker = Worker(inheritance, make_dispatcher, make_doors)
    loop = new_event_loop(worker.engine, worker.deliver, worker.watch)
    worker.serving = Collector(loop).start
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(worker.main())
    finally:
        loop.close()
        worker.engine.close()
    return 0


class Worker:
    """Everything of one shard. Lives on the loop thread."""

    def __init__(
        self, inheritance: WorkerInheritance, make_dispatcher: MakeDispatcher, make_doors: MakeDoorEndpoint
    ) -> None:
        self._inheritance = inheritance
        self._make_dispatcher = make_dispatcher
        self._doors = WorkerDoors(inheritance.doors, make_doors)
        self.engine: Final = make_engine(inheritance)
        self._tls = WorkerTls(inheritance.settings.tcp.tls, inheritance.tls_fd, self.engine)
        self.watch: Final = watch_of(os.environ)
        self.serving: Callable[[], None] = lambda: None  # called before it says that it is ready
        self._data = inheritance.data_directory
        shard, shards = inheritance.shard, inheritance.shards
        self._partitions = OwnedPartitions(
            self.engine, shard, shards, self._data, inheritance.settings, lambda *segment: self._sealer.add(*segment)
        )
        self._sessions = SessionTable()
        self._recent_logs = RecentLogs(f"shard-{inheritance.shard}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_closed = asyncio.Event()  # set whenever the last connection is gone

    # ---- life ----

    async def main(self) -> None:
        inheritance = self._inheritance
        self._recent_logs.install()
        self._helpers = HelperThreads(_HELPER_THREADS)
        self._password_threads = HelperThreads(_PASSWORD_THREADS, "password", nice=_PASSWORD_NICE)
        self._login_turns = LoginTurns(self.engine, inheritance.shards, _PASSWORD_THREADS)
        trust = Trust(inheritance.trust)
        patience = Patience()
        self._stalls = StallFigures(inheritance.shard, patience)
        self._add_jobs()
        told = trust.renew, self._stalls.follow, patience.forgive, self._doors.renew, self._tls.reload
        asked = connection_calls(self.engine, inheritance)
        self._control = ControlLink(inheritance.control_fd, self._peer_down, self._peer_up, *told, *asked)
        sockets = TrustedSockets(inheritance.trust, trust, inheritance.shards, hear=self._control.hear)
        self._bus = Bus(inheritance.shard, inheritance.shards, sockets, patience)
        await self._bus.start()
        self._passwords = Passwords(self._password_threads, inheritance.settings.server.password_hash)
        self._role = self._make_role()
        self._metadata = self._role.metadata
        root_created = await self._role.start_metadata()
        await self._open_partitions()
        await self._serve()
        self._jobs.start()
        self.serving()
        self.watch.start()
        self._control.ready(root_created, self.engine.generation)
        await self._stop(await self._control.stop_requested())

    def _add_jobs(self) -> None:
        """Those that others call before they can run."""
        self._jobs = jobs = JobScheduler(self._stalls.stands_still)
        settings, state = self._inheritance.settings, lambda: self._metadata.state
        self._sealer = Sealer(self.engine, self._data, jobs)
        self._surveys = DamageSurveys(self.engine, self._data, self._partitions, jobs)
        self._compressor = Compressor(self.engine, self._data, self._partitions, state, settings.system, jobs)
        scrubber, place = settings.system.scrubber, (self._inheritance.shard, self._inheritance.shards)
        self._scrubber = Scrubber(self.engine, self._data, self._partitions, self._surveys, scrubber, jobs)
        self._leases = Leases(self.engine)
        self._retention = Retention(self.engine, place, self._partitions, state, settings, self._leases, jobs)
        self._use_room = add_room_job(jobs, self._partitions, lambda: self._role, self._helpers)

    def _make_role(self) -> Role:
        if not is_control_shard(self._inheritance):
            return FollowerRole(self._data, self._bus, self._helpers, self._diverged)
        beside = self._helpers, self._passwords, self._jobs, self._control.hear
        return ControlRole(self._inheritance, self.engine, self._bus, *beside)

    async def _open_partitions(self) -> None:
        """The loop goes on meanwhile: heartbeats, and changes of the metadata, which are followed at the end."""
        scanners = HelperThreads(RECOVERY_LANES, "recovery")
        follow_owners(self.engine, self._data, self._metadata)
        state = await self._partitions.recover(lambda: self._metadata.state, scanners)
        await scanners.close()
        await self._sweep(state)
        while state is not (current := self._metadata.state):
            await self._partitions.follow(state, current, self._helpers)
            state = current
        self._metadata.subscribe(self._applied)
        self._metadata.follow_with(self._follow)

    def _diverged(self, sentence: str) -> None:
        """This replica cannot follow: a fresh start reads the log again."""
        _log.critical("%s", sentence)
        logging.shutdown()
        os._exit(1)

    async def _serve(self) -> None:
        self._role.serve()  # the members of groups announce themselves to what it makes
        self._services = Services(self._service_parts())
        self._dispatcher = self._make_dispatcher(self.engine, self._metadata, self._services)
        self._offset_expiry = service_jobs(self._jobs, self.engine, self._metadata, self._services, self._inheritance)
        self._metadata.subscribe(self._services.routes.applied)
        self._metadata.subscribe(self._services.connections.applied)
        await self._doors.start(self._door_parts())
        listen(self.engine, self._inheritance)

    def _door_parts(self) -> DoorParts:
        return DoorParts(
            hear=self._control.hear,
            shards=self._inheritance.shards,
            pool_bytes=self._inheritance.pool_bytes,
            limits=self._inheritance.settings.server,
            engine=self.engine,
            metadata=self._metadata,
            services=self._services,
            sessions=self._sessions,
        )

    def _service_parts(self) -> ServiceParts:
        inheritance, metrics = self._inheritance, self._metrics()
        return ServiceParts(
            settings=inheritance.settings,
            engine=self.engine,
            metadata=self._metadata,
            bus=self._bus,
            sessions=self._sessions,
            passwords=self._passwords,
            login_turns=self._login_turns,
            threads=self._helpers,
            leases=self._leases,
            server=server_facts(inheritance),
            figures=lambda: metrics.read(inheritance.shard, self.engine.generation),
            own_logs=self._recent_logs.lines,
            supervisor_logs=self._control.supervisor_logs,
            access_keys=inheritance.access_keys,
            issuers=self._doors.issuers(inheritance.settings.http),
        )

    def _metrics(self) -> MetricRegistry:
        """The one place that knows where a figure of this worker comes from."""
        metrics = MetricRegistry(self.engine.latency)
        metrics.add_engine(self.engine)
        metrics.add("loop", self.watch.gauges, self.watch.counters)
        metrics.add("tls", self._tls.figures)
        metrics.add("process", process_gauges, process_counters)
        metrics.add("bus", self._bus.figures)
        metrics.add("calls", lambda: self._services.engine_calls.figures())
        metrics.add("helpers", self._helpers.figures)
        metrics.add("passwords", self._login_turns.figures)
        metrics.add("metadata", self._metadata_figures)
        metrics.add("sealing", self._sealer.gauges, self._sealer.counters)
        metrics.add("recovery", counters=self._partitions.recovery_figures)
        metrics.add("damage", self._surveys.gauges, self._surveys.counters)
        metrics.add("scrubber", self._scrubber.gauges, self._scrubber.counters)
        metrics.add("compressing", counters=self._compressor.counters)
        metrics.add("retention", self._retention.gauges, self._retention.counters)
        metrics.add("offsets", counters=lambda: self._offset_expiry.counters())
        metrics.add("leases", self._leases.gauges, self._leases.counters)
        metrics.add("stalls", self._stalls.gauges, self._stalls.counters)
        self._doors.add_figures(metrics)
        add_told_figures(metrics, lambda: self._services)
        self._role.add_figures(metrics)
        metrics.add("jobs", self._jobs.gauges, self._jobs.counters)
        return metrics

    def _metadata_figures(self) -> dict[str, int]:
        state = self._metadata.state
        return {"index": state.index, "streams": len(state.streams), "users": len(state.users)}

    async def _sweep(self, state: State) -> None:
        """What a deletion before a crash left behind goes to the trash; foreign directories are reported. Each shard
        does it for its own places, in which nobody else makes a directory."""
        shard, shards = self._inheritance.shard, self._inheritance.shards
        known = {
            place: incarnation
            for stream in state.streams.values()
            for place, (incarnation, _slot) in partitions_of(stream).items()
        }
        sweep = partial(
            sweep_streams, self._data, known, state.index, report_foreign=self._role.reports_foreign_directories
        )
        for sentence in await self._helpers.run(sweep, lambda place: owner(namespace(*place), shards) == shard):
            _log.warning("%s", sentence)

    async def _stop(self, seconds: float) -> None:
        """Every connection gets status 8 when its request is answered; then everything reaches the device."""
        deadline = time.monotonic() + max(0.0, seconds - _STOP_RESERVE_S)
        self.watch.stop()
        self._services.logins.stopping = True
        self._login_turns.close()
        self._role.stopping()
        self.engine.stop_listening()
        self.engine.close_all(Status.DISCONNECTED)
        await self._doors.stop(max(0.0, deadline - time.monotonic()))
        if len(self._sessions):
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), max(0.0, deadline - time.monotonic()))
        await asyncio.sleep(_QUIET_S)
        await self._jobs.stop()
        for task in self._tasks:
            task.cancel()
        self._services.close()
        self._role.close()
        flush_by = deadline + _STOP_RESERVE_S / 2
        await flush_everything(self.engine, self._helpers, flush_by, self._stalls.stands_still)
        await self._metadata.close()
        await self._bus.close()
        await asyncio.gather(self._password_threads.close(), self._jobs.close())
        await self._helpers.close()
        self._control.close()
        self._recent_logs.remove()

    # ---- metadata and peers ----

    def _applied(self, old: State, new: State, record: Record) -> None:
        """Before the record is acknowledged: nobody hears of what this shard does not know yet."""
        self._role.applied(old, new)

    async def _follow(self, old: State, new: State) -> None:
        """The same, for what takes longer."""
        if await self._partitions.follow(old, new, self._helpers):
            self._role.trashed()

    def _peer_down(self, shard: int) -> None:
        _log.warning("shard %d is down", shard)
        self.engine.peer_down(shard)
        self._bus.peer_down(shard)

    def _peer_up(self, shard: int, generation: int) -> None:
        self.engine.peer_up(shard, generation)
        self._bus.peer_up(shard)

    # ---- events of the engine ----

    def deliver(self, events: list[Event]) -> None:
        """The vector of events of one turn."""
        for event in events:
            self._handlers[type(event)](self, event)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_accepted(self, event: AcceptedEvent) -> None:
        self._services.connections.accepted(event.connection, event.address, event.transport)

    def _on_closed(self, event: ClosedEvent) -> None:
        self._services.registrations.closed(event.connection, event.memory)
        self._sessions.close(event.connection)
        if not len(self._sessions):
            self._all_closed.set()

    def _on_request(self, event: RequestEvent) -> None:
        self._spawn(self._dispatcher.handle(event), command_name(event.code))

    def _on_route_miss(self, event: RouteMissEvent) -> None:
        self._spawn(self._dispatcher.route_miss(event), "route miss")

    def _on_move(self, event: MoveEvent) -> None:
        state = self._services.connections.export_session(event.connection)
        if self.engine.move(event.connection, event.target_shard, state):
            self._sessions.close(event.connection, moved=True)
        else:
            self.engine.resume(event.connection)

    def _on_moved_in(self, event: MovedInEvent) -> None:
        self._services.connections.import_session(event.connection, event.address, event.session_state)

    def _on_group_polled(self, event: GroupPolledEvent) -> None:
        self._services.members.polled(event.connection, event.messages_count, event.offset, event.stored)

    def _on_call(self, event: CallEvent) -> None:
        self._services.engine_calls.ended(event)

    def _on_synced(self, event: SyncedEvent) -> None:
        self._services.partition_calls.synced(event.token, event.status)

    def _on_poisoned(self, event: PoisonedEvent) -> None:
        _log.error("partition %s is read only: %s", partition_text(event.namespace), os.strerror(event.errno))

    def _on_rolled(self, event: RolledEvent) -> None:
        self._partitions.rolled(event.namespace, event.start_offset)

    def _on_room(self, event: RoomEvent) -> None:
        tell_room(event, self._data)
        if not event.refused:
            self._use_room()

    _handlers: ClassVar[dict[type[Event], Callable[..., None]]] = {
        AcceptedEvent: _on_accepted,
        ClosedEvent: _on_closed,
        RequestEvent: _on_request,
        RouteMissEvent: _on_route_miss,
        MoveEvent: _on_move,
        MovedInEvent: _on_moved_in,
        DoubtEvent: lambda self, event: self._surveys.ask(event.namespace, event.segment),
        PoisonedEvent: _on_poisoned,
        GroupPolledEvent: _on_group_polled,
        RolledEvent: _on_rolled,
        ResumedEvent: lambda self, event: self._services.liftbridge_resumptions.add(event.namespace),
        RoomEvent: _on_room,
        SyncedEvent: _on_synced,
        CallEvent: _on_call,
        CertifiedEvent: lambda self, event: self._tls.certified(event, self._metadata, self._sessions),
    }
