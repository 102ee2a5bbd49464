"""Where clients of a running server connect."""

from __future__ import annotations

from collections.abc import Mapping

from shardd.server.shared_resources import SharedResources


def other_ways_in(shared: SharedResources, unix_path: str, doors: Mapping[str, str]) -> str:
    """Beside TCP, for the line that says so. `doors`: actual addresses by setting."""
    ways = "" if shared.websocket is None else f", websocket {shared.websocket.address}"
    for setting, address in doors.items():
        ways += f", {setting.partition('.')[0]} {address}"
    return ways + (f", unix {unix_path}" if shared.unix_listener is not None else "")


def actual_addresses(shared: SharedResources, doors: Mapping[str, str]) -> dict[str, str]:
    """By setting, where port 0 has become a real one."""
    addresses = {"tcp.address": shared.address, **doors}
    if shared.websocket is not None:
        addresses["websocket.address"] = shared.websocket.address
    return addresses
