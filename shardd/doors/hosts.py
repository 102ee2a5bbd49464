"""By which names a door may be asked. A page in a browser whose name was pointed at this host after it was loaded (DNS
rebinding) sends that name as `Host`: it gets a sentence and nothing else (docs/adr/0134-allowed-hosts.md)."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

from shardd.config.hosts import ANY, is_loopback, normal_host
from shardd.doors.certificate_names import names_of

if TYPE_CHECKING:
    from shardd.doors.asgi import Application, Receive, Scope, Send

STATUS: Final = 421  # Misdirected Request
_SHOWN_CHARACTERS_MAX: Final = 100  # of what was sent, in the refusal
_PORT: Final = re.compile(rb":[0-9]{0,5}\Z")


class AllowedHosts:
    """`setting`: the name of the key with `entries`. Without entries names are looked at only where the listener is
    bound to this host alone: elsewhere clients come by whatever name a network has for it."""

    def __init__(self, setting: str, entries: tuple[str, ...], listener: socket.socket) -> None:
        self.setting = setting
        bound_to = str(listener.getsockname()[0]).removeprefix("::ffff:")
        self._looks = ANY not in entries and (bool(entries) or is_loopback(bound_to))
        self._entries = frozenset(entry.strip("[]") for entry in entries)
        self._of_certificate: frozenset[str] = frozenset()

    def learn_certificate(self, chain: bytes) -> None:
        """Its names are allowed, those of the one before no more."""
        self._of_certificate = names_of(chain)

    def allow(self, host: bytes, arrived_at: str) -> bool:
        """`host`: the value of the field. `arrived_at`: the address that the connection was made to, which no name
        stands for when it is said itself."""
        if not self._looks or not host:
            return True
        try:
            name = normal_host(_PORT.sub(b"", host).decode("ascii"))
        except UnicodeDecodeError:
            return False
        if name is None:
            return False
        wide = f"*.{name.partition('.')[2]}"
        known = (self._entries, self._of_certificate)
        return (
            name in ("localhost", arrived_at)
            or is_loopback(name)
            or any(name in each or wide in each for each in known)
        )


class HostCheck:
    """In front of an application. Several names in one request do not come so far (asgi.py); none at all is that of a
    probe, since browsers always send one."""

    def __init__(self, inner: Application, hosts: AllowedHosts) -> None:
        self._inner, self._hosts = inner, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").strip()
        if self._hosts.allow(host, scope["server"][0].removeprefix("::ffff:")):
            await self._inner(scope, receive, send)
            return
        shown = ascii(host[:_SHOWN_CHARACTERS_MAX].decode("latin-1"))
        text = (
            f"{shown} is no name of this port: {self._hosts.setting} in the settings of the server lists further ones "
            "(docs/configuration.md#allowed-hosts)\n"
        )
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": STATUS, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else text.encode()})
