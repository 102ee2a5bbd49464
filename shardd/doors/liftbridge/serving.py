"""The door for Liftbridge as a whole: what it knows, what it serves, and what goes on beside calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
import msgspec

from shardd.doors.door import Door
from shardd.doors.liftbridge.activity import Activity
from shardd.doors.liftbridge.arrivals import Arrivals
from shardd.doors.liftbridge.call_lines import LINES, can_steer, line_options
from shardd.doors.liftbridge.calls import Gate
from shardd.doors.liftbridge.clients import make_clients
from shardd.doors.liftbridge.connection_shares import ConnectionShares
from shardd.doors.liftbridge.credentials import server_credentials
from shardd.doors.liftbridge.cursor_rpcs import CursorRpcs
from shardd.doors.liftbridge.cursors import Cursors
from shardd.doors.liftbridge.endpoint import (
    Excess,
    Service,
    Unserved,
    generic_handler,
    reading,
    server_options,
)
from shardd.doors.liftbridge.followers import Followers
from shardd.doors.liftbridge.group_clocks import GroupClocks
from shardd.doors.liftbridge.group_rpcs import GroupRpcs
from shardd.doors.liftbridge.health import HEALTH, REFLECTION, Health, reflection_handlers
from shardd.doors.liftbridge.idle_pauses import IdlePauses
from shardd.doors.liftbridge.main import SECTION
from shardd.doors.liftbridge.metadata_rpcs import Broker, MetadataRpcs
from shardd.doors.liftbridge.nats.forms import Nats
from shardd.doors.liftbridge.options import LiftbridgeOptions
from shardd.doors.liftbridge.partitions import Partitions
from shardd.doors.liftbridge.publish_rpcs import PublishRpcs
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.spread import Spread
from shardd.doors.liftbridge.stream_rpcs import StreamRpcs
from shardd.doors.liftbridge.subscribe_rpc import SubscribeRpc
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge import api
from shardd.protocol.liftbridge.api_messages import (
    CreateStreamRequest,
    DeleteStreamRequest,
    FetchConsumerGroupAssignmentsRequest,
    FetchCursorRequest,
    FetchMetadataRequest,
    FetchPartitionMetadataRequest,
    JoinConsumerGroupRequest,
    LeaveConsumerGroupRequest,
    PauseStreamRequest,
    PublishRequest,
    PublishToSubjectRequest,
    ReportConsumerGroupCoordinatorRequest,
    SetCursorRequest,
    SetStreamReadonlyRequest,
)
from shardd.protocol.liftbridge.requests import Prepare, Prepared

ADDRESS: Final = "liftbridge.address"
STOP_S: Final = 1.5  # what is under way has so long; the supervisor waits for 3 s
_FORGET_EVERY_S: Final = 10.0  # what is known of streams that are gone
_RETRY_S: Final = 0.2
_LINE_EVERY: Final = 50  # tries
_Found = TypeVar("_Found")
_log = logging.getLogger(__name__)


class Parts:
    """Made for one life of the door. Loop thread only."""

    def __init__(self, door: Door, options: LiftbridgeOptions) -> None:
        settings = options.liftbridge
        self.door = door
        self.options = options
        self.clients = make_clients(door, options.connections_max // 2 + 1, anonymous=bool(settings.anonymous_user))
        port = int(door.addresses[ADDRESS].rpartition(":")[2])
        slow_reader_s = options.server.slow_reader_timeout_ms / 1000
        of_address_max = options.grpc_connections_per_address_max
        self.connections = ConnectionShares(port, options.connections_max, of_address_max, slow_reader_s)
        self.gate = Gate(self.clients, self.connections, slow_reader_s)
        self.registry = Registry(door)
        self.partitions = Partitions()
        self.followers = Followers(self.partitions)
        self.arrivals = Arrivals(self.followers)
        self.publisher = Publisher(settings.max_message_size_bytes)
        self.publisher.arrived = self.arrivals.stored
        self.spread = Spread(self.registry, self.publisher, all_fsync=settings.ack_all_fsync)
        self.nats = Nats(door, options, self.registry, self.publisher)
        self.spread.outlet = self.nats.outlet
        self.cursors = Cursors(door, settings.cursors_partitions)
        self.clocks = GroupClocks(door, settings.group_consumer_timeout_ms / 1000)
        self.activity = Activity(door) if settings.activity else None
        self.pauses = IdlePauses(door, self.registry, self.arrivals, self.followers, settings.streams)
        self.health = Health(self.gate)
        self._forget_at_s = 0.0
        self.registry.listeners.append(self._streams_changed)

    async def load(self) -> Broker:
        """What the workers know already. Whoever clients know this server as."""
        prepared = await _until_done(lambda: self.door.task("prepare", Prepare()))
        await _until_done(self.registry.refresh)
        await _until_done(self.cursors.load)
        await _until_done(self.clocks.load)
        if self.activity is not None:
            await _until_done(self.activity.load)
        advertised = self.options.liftbridge.advertised_address or self.door.addresses[ADDRESS]
        host, _, port = advertised.rpartition(":")
        id_ = msgspec.convert(prepared, Prepared, strict=False).server_id
        return Broker(id_, host.strip("[]"), int(port))

    def services(self, broker: Broker) -> list[grpc.GenericRpcHandler]:
        """Everything that clients may call."""
        settings = self.options.liftbridge
        streams = StreamRpcs(self.registry, self.nats.listens)
        metadata = MetadataRpcs(self.registry, self.partitions, self.arrivals, broker)
        publish = PublishRpcs(self.registry, self.spread, settings.namespace, settings.max_message_size_bytes)
        cursors = CursorRpcs(self.registry, self.partitions, self.cursors)
        timeouts = settings.group_consumer_timeout_ms, settings.group_coordinator_timeout_ms
        groups = GroupRpcs(self.clocks, broker.id, *timeouts)
        service = Service(
            self.gate,
            unary={
                "CreateStream": reading(CreateStreamRequest, streams.create),
                "DeleteStream": reading(DeleteStreamRequest, streams.delete),
                "PauseStream": reading(PauseStreamRequest, streams.pause),
                "SetStreamReadonly": reading(SetStreamReadonlyRequest, streams.set_readonly),
                "FetchPartitionMetadata": reading(FetchPartitionMetadataRequest, metadata.fetch_partition),
                "Publish": reading(PublishRequest, publish.publish),
                "PublishToSubject": reading(PublishToSubjectRequest, publish.publish_to_subject),
                "SetCursor": reading(SetCursorRequest, cursors.set),
                "FetchCursor": reading(FetchCursorRequest, cursors.fetch),
                "JoinConsumerGroup": reading(JoinConsumerGroupRequest, groups.join),
                "LeaveConsumerGroup": reading(LeaveConsumerGroupRequest, groups.leave),
                "ReportConsumerGroupCoordinator": reading(ReportConsumerGroupCoordinatorRequest, groups.report),
            },
            large={
                "FetchMetadata": reading(FetchMetadataRequest, metadata.fetch),
                "FetchConsumerGroupAssignments": reading(FetchConsumerGroupAssignmentsRequest, groups.assignments),
            },
            streaming={
                "Subscribe": SubscribeRpc(self.registry, self.partitions, self.followers).subscribe,
                "PublishAsync": publish.publish_async,
            },
        )
        return [
            Excess(self.gate),
            generic_handler(self.gate, api.SERVICE, service.handlers),
            generic_handler(self.gate, HEALTH, self.health.handlers()),
            generic_handler(self.gate, REFLECTION, reflection_handlers(self.gate)),
            Unserved(self.gate),
        ]

    def notice(self, _index: int) -> None:
        """A worker has a newer record of the metadata."""
        self.registry.notice()
        if self.activity is not None:
            self.activity.notice()

    def work(self) -> list[Awaitable[None]]:
        """What goes on until the door stops."""
        work: list[Awaitable[None]] = [
            self.clients.sweep(),
            self.registry.follow(),
            self.followers.watch(),
            self.clocks.run(),
            self.pauses.run(),
            self.connections.run(),
        ]
        if self.activity is not None:
            work.append(self.activity.run())
        return [*work, *self.nats.work()]

    def _streams_changed(self) -> None:
        self.followers.streams_changed(self.registry.get)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + _FORGET_EVERY_S
            self.arrivals.forget({each.incarnation for each in self.registry.streams().values()})


async def serve_clients(door: Door, options: LiftbridgeOptions) -> None:
    """Until it is cancelled."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # what strangers send is no line of the log
    parts = Parts(door, options)
    door.on_metadata_changed = parts.notice
    broker = await parts.load()
    servers = _servers(door, options, parts.services(broker))
    parts.connections.bound_listeners()
    for server in servers:
        await server.start()
    working = [asyncio.ensure_future(each) for each in parts.work()]
    door.ready()
    try:
        await asyncio.gather(*working)
    finally:
        parts.health.stop()
        for each in working:
            each.cancel()
        parts.connections.close()
        await asyncio.gather(*(server.stop(STOP_S) for server in servers))


def _servers(door: Door, options: LiftbridgeOptions, services: list[grpc.GenericRpcHandler]) -> list[grpc.aio.Server]:
    """One for each line of calls. Each listens at the address, in this order: the kernel knows them by it."""
    address, common = door.addresses[ADDRESS], server_options(options)
    is_steered = can_steer()
    servers = [grpc.aio.server(options=[*common, *line_options(line, is_steered)]) for line in range(LINES)]
    shown = server_credentials(door, SECTION, LINES) if options.liftbridge.tls.enabled else []
    for line, server in enumerate(servers):
        server.add_generic_rpc_handlers(tuple(services))
        if shown:
            server.add_secure_port(address, shown[line])
        else:
            server.add_insecure_port(address)
    return servers


async def _until_done(ask: Callable[[], Awaitable[_Found]]) -> _Found:
    """Workers may be on their way: tried until they have answered."""
    tries = 0
    while True:
        try:
            return await ask()
        except (ShardError, WorkerLostError) as error:
            if tries % _LINE_EVERY == 0:
                _log.info("waits for the workers: %s", error)
            tries += 1
            await asyncio.sleep(_RETRY_S)
