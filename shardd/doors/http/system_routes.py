"""The server itself: figures, clients, nodes, and the archive that supporters ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response

from shardd.doors.http.endpoint import Call, Endpoint
from shardd.doors.http.errors import ClientGoneError
from shardd.doors.http.shapes import Value
from shardd.doors.http.sizes import size_text
from shardd.doors.http.stream_routes import found
from shardd.doors.metrics.exposition import OPEN_METRICS
from shardd.protocol.account_requests import SnapshotCompression, SnapshotType
from shardd.protocol.system_replies import NODE_HEALTHY, ROLE_LEADER, TRANSPORT_HTTP, TRANSPORT_QUIC, TRANSPORT_TCP

METRICS: Final = "/metrics"
ZIP: Final = "application/zip"
_SIZES: Final = (
    "memory_usage", "total_memory", "available_memory", "read_bytes", "written_bytes", "messages_size_bytes",
    "free_disk_space", "total_disk_space",
)  # fmt: skip
_TRANSPORTS: Final = {TRANSPORT_TCP: "tcp", TRANSPORT_QUIC: "quic", TRANSPORT_HTTP: "http", 4: "ws"}
_COMPRESSIONS: Final = {each.name.capitalize(): each for each in SnapshotCompression}
_TYPES: Final = {each.name.title().replace("_", ""): each for each in SnapshotType}


class CacheMetrics(msgspec.Struct, frozen=True):
    """None: this server reads through the cache of the kernel."""

    hits: int
    misses: int
    hit_ratio: float


class Stats(msgspec.Struct, frozen=True):
    """Times in microseconds; sizes as texts."""

    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: str
    total_memory: str
    available_memory: str
    run_time_us: int = msgspec.field(name="run_time")
    start_time_us: int = msgspec.field(name="start_time")
    read_bytes: str
    written_bytes: str
    messages_size_bytes: str
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    consumer_groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    server_version: str = msgspec.field(name="iggy_server_version")
    server_semver: int | None = msgspec.field(name="iggy_server_semver")
    cache_metrics: Mapping[str, CacheMetrics]
    threads_count: int
    free_disk_space: str
    total_disk_space: str

    @classmethod
    def of(cls, value: Value) -> Stats:
        sizes: dict[str, Any] = {
            name: size_text(value[name if name.endswith("_bytes") else f"{name}_bytes"]) for name in _SIZES
        }
        fields = {name: value[name] for name in cls.__struct_fields__ if name in value and name not in sizes}
        return cls(**fields, **sizes, cache_metrics={})


class Client(msgspec.Struct, frozen=True):
    client_id: int
    user_id: int | None
    address: str
    transport: str
    consumer_groups_count: int

    @classmethod
    def of(cls, value: Value) -> Client:
        return cls(**_client_fields(value))


class Membership(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    group_id: int


class ClientDetails(Client, frozen=True):
    consumer_groups: Sequence[Membership]

    @classmethod
    def of(cls, value: Value) -> ClientDetails:
        return cls(**_client_fields(value), consumer_groups=[Membership(*each) for each in value["memberships"]])


class Endpoints(msgspec.Struct, frozen=True):
    """Ports; 0: there is none."""

    tcp: int
    quic: int
    http: int
    websocket: int


class Node(msgspec.Struct, frozen=True):
    name: str
    ip: str
    endpoints: Endpoints
    role: Literal["leader", "follower"]
    status: Literal["healthy", "unreachable"]


class ClusterMetadata(msgspec.Struct, frozen=True):
    name: str
    nodes: Sequence[Node]


class SnapshotRequest(msgspec.Struct, frozen=True):
    compression: Literal["Stored", "Deflated", "Bzip2", "Zstd", "Lzma", "Xz"] = "Deflated"
    snapshot_types: Sequence[
        Literal["FilesystemOverview", "ProcessList", "ResourceUsage", "Test", "ServerLogs", "ServerConfig", "All"]
    ] = ("All",)


async def get_stats(call: Call) -> Stats:
    return Stats.of(await call.command("get_stats"))


async def get_clients(call: Call) -> list[Client]:
    return [Client.of(each) for each in await call.command("get_clients")]


async def get_client(call: Call) -> ClientDetails:
    return ClientDetails.of(await found(call, "get_client", {"client_id": call.number("client")}))


async def get_cluster_metadata(call: Call) -> ClusterMetadata:
    value = await call.command("get_cluster_metadata")
    return ClusterMetadata(value["name"], [_node(each) for each in value["nodes"]])


async def get_snapshot(call: Call) -> Response:
    said: SnapshotRequest = call.body
    types = [_TYPES[each] for each in said.snapshot_types]
    request = {"compression": _COMPRESSIONS[said.compression], "types": types}
    async with call.polls.snapshots.place(call.owner, call.host):
        if call.peer.is_gone:
            raise ClientGoneError
        archive = await call.command("get_snapshot", request)
    name = f"iggy_snapshot_{datetime.now(UTC):%Y%m%d_%H%M%S}.zip"
    return Response(archive, media_type=ZIP, headers={"content-disposition": f'attachment; filename="{name}"'})


async def get_metrics(call: Call) -> Response:
    return Response(await call.figures.text(), media_type=OPEN_METRICS)


def _client_fields(value: Value) -> dict[str, Any]:
    return {
        "client_id": value["client_id"],
        "user_id": value["user_id"],
        "address": value["address"],
        "transport": _TRANSPORTS.get(value["transport"], "tcp"),
        "consumer_groups_count": len(value["memberships"]),
    }


def _node(value: Value) -> Node:
    ports = Endpoints(value["tcp_port"], value["quic_port"], value["http_port"], value["websocket_port"])
    return Node(
        value["name"],
        value["ip"],
        ports,
        "leader" if value["role"] == ROLE_LEADER else "follower",
        "healthy" if value["status"] == NODE_HEALTHY else "unreachable",
    )


ENDPOINTS: Final = (
    Endpoint("GET", METRICS, get_metrics, "Counts for everybody, in OpenMetrics", media=OPEN_METRICS),
    Endpoint("GET", "/stats", get_stats, "Figures of the server", reply=Stats),
    Endpoint("GET", "/clients", get_clients, "Who is connected", reply=list[Client]),
    Endpoint("GET", "/clients/{client}", get_client, "A client and its groups", reply=ClientDetails),
    Endpoint("GET", "/cluster/metadata", get_cluster_metadata, "The nodes", reply=ClusterMetadata),
    Endpoint(
        "POST", "/snapshot", get_snapshot, "An archive about the server", body=SnapshotRequest, media=ZIP, waits=True
    ),
)
