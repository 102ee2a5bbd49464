"""Mutated requests at the door for metrics, which speaks HTTP without a login and may ask for a token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import ClassVar, Final

from tests.doors.metrics_server import OPEN_METRICS, MetricsServer
from tests.fuzz.door_lanes import FuzzedDoor, Work
from tests.fuzz.http_door import HttpLane, Target, answered
from tests.fuzz.http_requests import ODD_HEADS, Request, mutated
from tests.support import wire

TOKEN: Final = "a-token-of-20-letters"
LANES: Final = 6  # two connections of each fit into what the door has for an address
_PATHS: Final = ("/healthz", "/readyz", "/metrics", "/", "/metrics/", "//metrics", "/stats", "/healthz?x=1", "/%2e%2e")
_ODD_PATHS: Final = (
    "*",
    "",
    "http://localhost/metrics",
    "/" + "a" * 7_000,
    "/" + "b" * 9_000,
    "/\x7f",
    "/%00",
    "/%ff%fe",
)
_METHODS: Final = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "BREW")
_ACCEPTED: Final = (OPEN_METRICS, "text/plain", "*/*", "", "application/openmetrics-text;version=\x7f", "x" * 4_000)
_SHOWN: Final = (TOKEN, TOKEN[:-1], TOKEN + "x", "", "\x7f", "y" * 4_000)
_BODIES: Final = (b"", b"{}", b"x" * 3_000)
_DEAR_CHANCE: Final = 0.2  # of `/metrics`: all figures of all workers


class MetricsRequests:
    """`next` gives one; everything is drawn from one seeded generator."""

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)

    def next(self, token: str) -> Request:
        dice = self._dice
        path = dice.choice(_PATHS if dice.random() < 0.9 else _ODD_PATHS)
        if "metrics" in path and dice.random() > _DEAR_CHANCE:
            path = "/healthz"
        heads = ["Host: localhost"]
        if dice.random() < 0.7:
            heads.append(f"Authorization: Bearer {token if dice.random() < 0.7 else dice.choice(_SHOWN)}")
        if dice.random() < 0.5:
            heads.append(f"Accept: {dice.choice(_ACCEPTED)}")
        body = dice.choice(_BODIES) if dice.random() < 0.1 else b""
        if body:
            heads.append(f"Content-Length: {len(body)}")
        is_framed = dice.random() < 0.9 and path in _PATHS and "\x7f" not in "".join(heads)
        if not is_framed:
            heads.insert(dice.randrange(len(heads) + 1), dice.choice(ODD_HEADS))
        method = dice.choice(_METHODS[:-2] if is_framed else _METHODS)
        data = "\r\n".join((f"{method} {path} HTTP/1.1", *heads, "", "")).encode() + body
        if not is_framed and dice.random() < 0.6:
            data = mutated(data, dice)
        return Request(data, is_framed and method != "HEAD")


class MetricsDoor(FuzzedDoor):
    """It asks for a token, and tells of one topic."""

    process_name: ClassVar[str] = "metrics"
    lanes: ClassVar[int] = LANES

    def __init__(self, data: Path) -> None:
        file = data.with_name("metrics-token")
        file.write_text(TOKEN)
        self._metrics = MetricsServer(data, {"SHARDD_METRICS_TOKEN_FILE": str(file)})
        super().__init__(self._metrics)

    @property
    def _target(self) -> Target:
        return Target(self._metrics.metrics_address, None, lambda: TOKEN)

    def prepare(self) -> None:
        with wire.connect(self._metrics.address) as control:
            if not control.streams():
                control.create_topic(control.create_stream("s"), "t", 2)

    async def lane(self, number: int, seed: str, work: Work) -> None:
        await HttpLane(self._target, MetricsRequests(seed), work.counts).run(work)

    async def ask(self) -> None:
        head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        status = await answered(self._target, head.encode())
        assert status == 200, status
