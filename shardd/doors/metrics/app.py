"""`/healthz`, `/readyz` and `/metrics`: what each of them says."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from functools import partial
from typing import Final

from shardd.doors.asgi import Message, Receive, Scope, Send
from shardd.doors.door import Door
from shardd.doors.metrics.collector import Collector, Once, Server
from shardd.doors.metrics.exposition import OPEN_METRICS, TEXT, Exposition
from shardd.doors.metrics.families import write_all
from shardd.doors.metrics.options import MetricsOptions

DEVICE: Final = "device"  # `Standing.cause`
_PLAIN: Final = "text/plain; charset=utf-8"
_METHODS: Final = frozenset({"GET", "HEAD"})


class MetricsApplication:
    """Loop thread of the door only. It reads no body, and nothing of a request but its line, `Accept` and
    `Authorization`."""

    def __init__(self, door: Door, options: MetricsOptions) -> None:
        self._collector = Collector(door)
        self._options = options
        self._shards = Once(self._collector.shards)
        self._texts = {open_metrics: Once(partial(self._text, open_metrics)) for open_metrics in (False, True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, media, body = await self._answer(scope)
        headers = [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> tuple[int, str, bytes]:
        path = scope["path"]
        if path not in ("/healthz", "/readyz", "/metrics"):
            return 404, _PLAIN, b"not found\n"
        if scope["method"] not in _METHODS:
            return 405, _PLAIN, b"only GET and HEAD\n"
        if path == "/healthz":
            return 200, _PLAIN, b"ok\n"
        if path == "/readyz":
            problems = problems_of(await self._shards.get())
            return (503, _PLAIN, "".join(f"{each}\n" for each in problems).encode()) if problems else _READY
        if not self._may_read(scope["headers"]):
            return 401, _PLAIN, b""
        wanted = any(name == b"accept" and b"application/openmetrics-text" in value for name, value in scope["headers"])
        return 200, OPEN_METRICS if wanted else TEXT, await self._texts[wanted].get()

    def _may_read(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        token = self._options.token
        shown = [value for name, value in headers if name == b"authorization"]
        if not token:
            return True
        return len(shown) == 1 and hmac.compare_digest(shown[0], b"Bearer " + token.encode())

    async def _text(self, open_metrics: bool) -> bytes:
        """Made once for all who ask at the same time, as the figures are."""
        server, to = await self._collector.everything(), Exposition(open_metrics=open_metrics)
        write_all(server, problems_of(server), self._options.version, to)
        return to.text()


_READY: Final = (200, _PLAIN, b"ready\n")


def problems_of(server: Server) -> list[str]:
    """Why the server is not ready; none: every shard has recovered and answers, none waits for its device, all can
    write. One that gets no CPU for a while is ready: to send its clients elsewhere makes others slow, too."""
    problems = [f"shard {each.shard} stands still: {each.cause}" for each in server.standing if each.cause == DEVICE]
    for shard, figures in enumerate(server.shards):
        if figures is None:
            problems.append(f"shard {shard} is not up")
        elif figures.gauges.get("engine.disk_refuses"):
            problems.append(f"shard {shard} takes no sends: the disk is full or can only be read")
    return problems
