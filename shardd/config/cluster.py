"""The other nodes that GET_CLUSTER_METADATA lists (docs/protocol/system.md#get-cluster-metadata):
`[[cluster.node.others]]` in the file, or one variable for each field, `CLUSTER_NODE_OTHERS_<0..9>_NAME`, `_IP`,
`_PORTS_TCP` and so on. Nothing is sent to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from shardd.config.digits import number_of
from shardd.config.nodes import ClusterNodeSettings

OTHERS_PATH: Final = "cluster.node.others"
OTHERS_MAX: Final = 64
TEXT_BYTES_MAX: Final = 255
TRANSPORTS: Final = ("tcp", "quic", "http", "websocket")
# what Iggy's own default is, so that a harness that only switches the cluster on sees the same nodes
DEFAULT_OTHERS: Final = (
    {
        "name": "iggy-node-2",
        "ip": "127.0.0.1",
        "ports": {"tcp": 8091, "quic": 8081, "http": 3001, "websocket": 8093},
    },
)
_VARIABLE: Final = re.compile(r"CLUSTER_NODE_OTHERS_(\d)_(NAME|IP|PORTS_(TCP|QUIC|HTTP|WEBSOCKET))")


def parse_name(value: object) -> str:
    """A name or an address of a node."""
    if not isinstance(value, str) or not value.strip() or len(value.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"{value!r} is no text of 1 to {TEXT_BYTES_MAX} bytes")
    return value


def parse_others(value: object) -> list[dict[str, Any]]:
    """Fields of `ClusterNodeSettings` for each entry. ValueError with a sentence."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > OTHERS_MAX:
        raise ValueError(f"not a list of at most {OTHERS_MAX} nodes")
    nodes = [_parse_node(entry) for entry in value]
    names = [node["name"] for node in nodes]
    if len(set(names)) != len(names):
        raise ValueError("two nodes have the same name")
    for transport in TRANSPORTS:
        places = [(node["ip"], node[transport]) for node in nodes if node[transport]]
        if len(set(places)) != len(places):
            raise ValueError(f"two nodes have the same address for {transport}")
    return nodes


def _parse_node(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict) or entry.keys() - {"name", "ip", "ports"}:
        raise ValueError(f"{entry!r} is no node with name, ip and ports")
    ports = entry.get("ports", {})
    if not isinstance(ports, dict) or ports.keys() - set(TRANSPORTS):
        raise ValueError(f"{ports!r} are no ports for {', '.join(TRANSPORTS)}")
    node: dict[str, Any] = {"name": parse_name(entry.get("name")), "ip": parse_name(entry.get("ip"))}
    return node | {name: _parse_port(ports[name]) if name in ports else 0 for name in TRANSPORTS}


def _parse_port(value: object) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        port = number_of(str(value))
        if port is not None and 1 <= port <= 65535:
            return port
    raise ValueError(f"{value!r} is no port; 1 to 65535")


def format_others(nodes: Sequence[ClusterNodeSettings]) -> str:
    """As TOML writes them in one line."""
    return f"[{', '.join(map(_format_node, nodes))}]"


def _format_node(node: ClusterNodeSettings) -> str:
    texts = [f"{name} = {msgspec.json.encode(getattr(node, name)).decode()}" for name in ("name", "ip")]
    ports = [f"{name} = {getattr(node, name)}" for name in TRANSPORTS if getattr(node, name)]
    return f"{{ {', '.join(texts)}, ports = {{ {', '.join(ports)} }} }}"


def read_variable(suffix: str, text: str, nodes: dict[int, dict[str, Any]]) -> bool:
    """Enters a variable without its prefix into the entry it belongs to; False: it belongs to none of them."""
    found = _VARIABLE.fullmatch(suffix)
    if found is None:
        return False
    entry = nodes.setdefault(int(found[1]), {})
    if found[3]:
        entry.setdefault("ports", {})[found[3].lower()] = text
    else:
        entry[found[2].lower()] = text
    return True
