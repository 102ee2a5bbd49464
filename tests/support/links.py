"""Blocking links of the client for tests, logged in as root."""

from __future__ import annotations

from shardd.client.blocking import BlockingLink
from shardd.client.transport import way_to


def root_link(address: str, timeout_s: float = 30.0) -> BlockingLink:
    """`address`: "host:port" or "unix:/path"."""
    return BlockingLink(way_to(address, "iggy", "iggy"), timeout_s=timeout_s)
