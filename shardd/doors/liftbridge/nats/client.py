"""nats-py as the door uses it: one connection until it is lost. Each delivered message is handed over at once, and a
login is never sent without TLS if the settings want TLS.

`_process_msg`, `_connect_command` and `_id` are private names of nats-py: pyproject.toml fixes its version, and
tests/doors/test_liftbridge_nats_link.py shows that nats-py calls them."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Awaitable, Callable
from typing import Final, TypedDict

from nats.aio.client import Client, RawCredentials
from nats.aio.subscription import Subscription
from nats.errors import Error

from shardd.config.liftbridge import LiftbridgeNats

CONNECT_TIMEOUT_S: Final = 5
PING_INTERVAL_S: Final = 20
PINGS_MAX: Final = 2  # without an answer
UNSENT_BYTES_MAX: Final = 2 << 20  # then whoever publishes waits
SECRET_BYTES_MAX: Final = 64 << 10
_TLS: Final = "tls://"

Deliver = Callable[[int, bytes, bytes, bytes, bytes], Awaitable[None]]
"""(number of the subscription, subject, reply, payload, headers as they came)"""


class ConnectOptions(TypedDict, total=False):
    """Arguments of `Client.connect`."""

    servers: list[str]
    allow_reconnect: bool
    connect_timeout: int
    ping_interval: int
    max_outstanding_pings: int
    pending_size: int
    no_echo: bool
    name: str
    tls: ssl.SSLContext
    user_credentials: RawCredentials
    nkeys_seed_str: str
    token: str
    user: str
    password: str


class NatsClient(Client):
    """`deliver` hears each message, in their order; nothing is read while it waits."""

    def __init__(self, deliver: Deliver, *, wants_tls: bool) -> None:
        super().__init__()
        self._deliver = deliver
        self._wants_tls = wants_tls

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        await self._deliver(sid, subject, reply, data, headers or b"")

    def _connect_command(self) -> bytes:
        if self._wants_tls and not self._server_info.get("tls_required"):
            raise Error("the server has no TLS")
        command: bytes = super()._connect_command()
        return command

    async def listen(self, pattern: str, group: str) -> Subscription:
        """The subscription; its number is `number_of`. nats.errors.Error."""
        return await self.subscribe(pattern, queue=group)


def number_of(subscription: Subscription) -> int:
    return subscription._id


def connect_options(settings: LiftbridgeNats, server: str) -> ConnectOptions:
    """Reads files. OSError, ValueError, ssl.SSLError."""
    options: ConnectOptions = {
        "servers": [server],
        "allow_reconnect": False,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "ping_interval": PING_INTERVAL_S,
        "max_outstanding_pings": PINGS_MAX,
        "pending_size": UNSENT_BYTES_MAX,
        "no_echo": True,
        "name": "shardd",
    }
    if wants_tls(settings, server):
        options["tls"] = _tls(settings)
    if settings.credentials_file:
        text = _secret(settings.credentials_file)
        if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
            raise ValueError(f"{settings.credentials_file}: no credentials of NATS")
        options["user_credentials"] = RawCredentials(text)
    elif settings.nkey_file:
        options["nkeys_seed_str"] = _secret(settings.nkey_file).strip()
    elif settings.token_file:
        options["token"] = _secret(settings.token_file).strip()
    elif settings.login_name:
        options["user"] = settings.login_name
        options["password"] = _secret(settings.password_file).rstrip("\r\n") if settings.password_file else ""
    return options


def wants_tls(settings: LiftbridgeNats, server: str) -> bool:
    return server.startswith(_TLS) or bool(settings.tls_ca_file or settings.tls_cert_file)


def _tls(settings: LiftbridgeNats) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
    if settings.tls_cert_file:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file or None)
    return context


def _secret(path: str) -> str:
    """A small file; a link to one is good, as orchestrators mount secrets."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path}: no regular file")
        data = file.read(SECRET_BYTES_MAX + 1)
    if len(data) > SECRET_BYTES_MAX:
        raise ValueError(f"{path}: more than {SECRET_BYTES_MAX} bytes")
    return data.decode()
