"""All services of one worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from shardd.config.schema import Settings
from shardd.engine import Engine
from shardd.engine.calls import EngineCalls
from shardd.groups.members import GroupMembers
from shardd.groups.surroundings import MembersSurroundings
from shardd.metadata import Metadata
from shardd.protocol.door_frames import Purpose
from shardd.runtime.bus import Bus
from shardd.runtime.metrics import MetricRegistry, ShardFigures
from shardd.runtime.threads import Threads
from shardd.security import Passwords
from shardd.security.access_tokens import AccessTokens
from shardd.security.issuers import Issuers
from shardd.security.login_turns import LoginTurns
from shardd.service.access_tokens import AccessTokenService
from shardd.service.bounds import BoundsService
from shardd.service.connections import ConnectionService
from shardd.service.extensions import ExtensionService
from shardd.service.figures import FiguresService
from shardd.service.given_up import GivenUpCalls
from shardd.service.groups import GroupService
from shardd.service.handshake_figures import HandshakeFigures
from shardd.service.lease_table import Leases
from shardd.service.leases import LeaseService
from shardd.service.liftbridge.figures import LiftbridgeFigures
from shardd.service.liftbridge.groups import LiftbridgeGroupService
from shardd.service.liftbridge.publish import LiftbridgePublishService
from shardd.service.liftbridge.resumptions import LiftbridgeResumptions
from shardd.service.liftbridge.streams import LiftbridgeStreamService
from shardd.service.liftbridge.tasks import LiftbridgeTasks
from shardd.service.logins import LoginService
from shardd.service.messages import MessageService
from shardd.service.offsets import OffsetService
from shardd.service.partition_calls import PartitionCalls
from shardd.service.partition_requests import PartitionRequests
from shardd.service.partitions import PartitionService
from shardd.service.producers import ProducerService
from shardd.service.registrations import Registrations
from shardd.service.routes import RouteService
from shardd.service.sessions import SessionTable
from shardd.service.snapshot import SnapshotService
from shardd.service.statistics import Statistics
from shardd.service.streams import StreamService
from shardd.service.system import ServerFacts, SystemService
from shardd.service.tokens import TokenService
from shardd.service.topic_settings import TopicSettingsService
from shardd.service.topics import TopicService
from shardd.service.unused_offsets import UnusedOffsetService
from shardd.service.users import UserService
from shardd.service.waiting import MessageWaits


class ServiceParts(msgspec.Struct, frozen=True):
    """What a worker has for its services; each of them gets what it needs of that. `threads` run blocking calls that
    may take as long as the device; `figures` are those of this worker; the logs are newest lines. `access_keys`: of
    access tokens, none when there are no doors; `issuers`: others whose tokens count."""

    settings: Settings
    engine: Engine
    metadata: Metadata
    bus: Bus
    sessions: SessionTable
    passwords: Passwords
    login_turns: LoginTurns
    threads: Threads
    leases: Leases
    server: ServerFacts
    figures: Callable[[], ShardFigures]
    own_logs: Callable[[], list[str]]
    supervisor_logs: Callable[[], Awaitable[list[str]]]
    access_keys: Sequence[bytes] = ()
    issuers: Issuers | None = None


class Services:
    """One object for each family of commands. Made inside the running loop of the worker, used there."""

    def __init__(self, parts: ServiceParts) -> None:
        engine, metadata, bus, sessions = parts.engine, parts.metadata, parts.bus, parts.sessions
        system, data_directory = parts.settings.system, parts.settings.system.data_directory
        statistics = Statistics(engine)
        self.threads = parts.threads
        self.listener = parts.settings.tcp
        self.legacy = parts.settings.legacy
        self.members = GroupMembers(MembersSurroundings(engine, metadata, bus, sessions))
        self.partition_calls = PartitionCalls(metadata, engine, bus, data_directory, parts.leases)
        given_up = GivenUpCalls(engine.counters()["pool_capacity_bytes"])
        self.engine_calls = EngineCalls(engine, given_up.given_up)
        timeout_s = parts.settings.server.request_timeout_ms / 1000
        asked = PartitionRequests(metadata, self.engine_calls, given_up, bus.shards, timeout_s)
        self.system = SystemService(metadata, statistics, bus, sessions, parts.server)
        self.snapshots = SnapshotService(metadata, bus, engine, system, parts.own_logs, parts.supervisor_logs)
        self.groups = GroupService(metadata, self.members, engine, bus.shards, statistics.answers)
        self.extensions = ExtensionService(metadata, bus, parts.figures, parts.server.started_at_us)
        self.figures = FiguresService(metadata, statistics, engine, sessions, parts.figures, parts.settings.metrics)
        self.bounds = BoundsService(metadata, statistics, parts.threads, data_directory, self.partition_calls)
        self.leases = LeaseService(metadata, self.partition_calls)
        self.offsets = OffsetService(metadata, statistics, self.partition_calls, self.groups, asked)
        self.unused_offsets = UnusedOffsetService(metadata, self.partition_calls, self.members, parts.settings.offsets)
        self.messages = MessageService(metadata, self.partition_calls, self.groups, asked, engine)
        self.waits = MessageWaits(asked)
        self.routes = RouteService(metadata, engine)
        self.streams = StreamService(metadata, statistics, system, parts.settings.liftbridge)
        self.topics = TopicService(metadata, statistics, system, parts.settings.liftbridge)
        self.topic_defaults = system
        self.topic_settings = TopicSettingsService(metadata, system)
        self.partitions = PartitionService(metadata, self.partition_calls, self.groups)
        jwt = parts.settings.http.jwt
        times_s = jwt.access_token_expiry_ms // 1000, jwt.clock_skew_ms // 1000
        tokens = AccessTokens(parts.access_keys, jwt.issuer, jwt.audience, *times_s)
        self.access_tokens = AccessTokenService(metadata, engine, tokens, parts.issuers)
        self.logins = LoginService(
            metadata,
            parts.passwords,
            parts.login_turns,
            engine,
            parts.settings.server.login_attempts_max,
            self.access_tokens,
            parts.settings.legacy.anonymous_user,
            {
                Purpose.ANONYMOUS: parts.settings.liftbridge.anonymous_user,
                Purpose.NATS: parts.settings.liftbridge.nats.user,
            },
        )
        self.users = UserService(metadata, parts.passwords, parts.login_turns, engine, statistics.answers)
        self.tokens = TokenService(
            metadata, engine, parts.settings.personal_access_token.max_tokens_per_user, statistics.answers
        )
        self.producers = ProducerService(metadata, engine, parts.settings.server.producer_expiry_ms)
        liftbridge = parts.settings.liftbridge
        self.liftbridge_streams = LiftbridgeStreamService(metadata, liftbridge, statistics.answers)
        self.liftbridge_groups = LiftbridgeGroupService(metadata, liftbridge, statistics.answers)
        self.liftbridge_publish = LiftbridgePublishService(metadata, liftbridge, self.partition_calls, asked)
        self.liftbridge_figures = LiftbridgeFigures()
        self.http_handshakes = HandshakeFigures()
        self.quic_handshakes = HandshakeFigures()
        self.liftbridge_resumptions = LiftbridgeResumptions(metadata)
        self.liftbridge_tasks = LiftbridgeTasks(metadata, liftbridge, self.liftbridge_publish, asked, self.bounds)
        self.registrations = Registrations(engine, bus, sessions)
        self.connections = ConnectionService(metadata, engine, sessions, self.members, parts.settings)

    def close(self) -> None:
        """The worker stops."""
        self.engine_calls.close()
        self.liftbridge_resumptions.close()
        self.members.close()


def add_told_figures(metrics: MetricRegistry, services: Callable[[], Services]) -> None:
    """What doors tell of themselves. `services()` is called when somebody asks for figures."""
    metrics.add("liftbridge", counters=lambda: services().liftbridge_figures.counters())
    metrics.add("http", lambda: services().http_handshakes.gauges(), lambda: services().http_handshakes.counters())
    metrics.add("quic", lambda: services().quic_handshakes.gauges(), lambda: services().quic_handshakes.counters())
