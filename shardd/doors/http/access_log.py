"""One line of the log for each request, when a setting asks for it: never a token, a query or a body."""

from __future__ import annotations

import logging
import time
from typing import Final

from shardd.doors.asgi import Application, Message, Receive, Scope, Send

LOGGER: Final = "shardd.access"
_PATH_CHARACTERS_MAX: Final = 512
_log = logging.getLogger(LOGGER)


class AccessLog:
    """Around an application. The path is told as it came, percent-encoded: in it nothing ends a line."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, size, ended = time.monotonic(), 0, 0, False

        async def sending(message: Message) -> None:
            nonlocal status, size, ended
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
                ended = not message.get("more_body", False)
            await send(message)

        try:
            await self._inner(scope, receive, sending)
        finally:
            host, port = scope["client"] or ("", 0)
            path = scope["raw_path"][:_PATH_CHARACTERS_MAX].decode("ascii", "backslashreplace")
            _log.info(
                "%s:%d %s %s %d %d bytes %.1f ms%s",
                host,
                port,
                scope["method"],
                path,
                status,
                size,
                (time.monotonic() - began) * 1000,
                "" if ended else ", cut",
            )
