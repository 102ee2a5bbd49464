"""`metrics.*`: probes and figures for who watches a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from shardd.config.schema import Settings

SERIES_MAX: Final = 10_000  # topics, or groups, that are told by name


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The door for metrics. `address` as that of TCP. `allowed_hosts`: further names of it (hosts.py).
    `token_file` "": who reaches the address may read the figures.
    `topics_max`, `groups_max`: so many of them are told by name, the first ones by id."""

    enabled: bool
    address: str
    allowed_hosts: tuple[str, ...]
    token_file: str
    topics_max: int
    groups_max: int


def check(settings: Settings) -> list[str]:
    """Sentences about keys that do not fit each other."""
    metrics = settings.metrics
    if not metrics.enabled or metrics.address.endswith(":0"):
        return []
    others = {"tcp.address": settings.tcp.address}
    if settings.websocket.enabled:
        others["websocket.address"] = settings.websocket.address
    if settings.http.enabled:
        others["http.address"] = settings.http.address
    return [f"metrics.address: {other} has it" for other, address in others.items() if address == metrics.address]
