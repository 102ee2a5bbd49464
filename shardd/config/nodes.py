"""`cluster.*`."""

from __future__ import annotations

import msgspec


class ClusterNodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `cluster.node.others`. A port 0 is not set: the one of this node is told."""

    name: str
    ip: str
    tcp: int
    quic: int
    http: int
    websocket: int


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cluster.*`: what clients are told about nodes (docs/protocol/system.md#get-cluster-metadata). `follower`: this
    node is not the leader."""

    enabled: bool
    name: str
    follower: bool
    current_name: str
    current_ip: str
    others: tuple[ClusterNodeSettings, ...]
