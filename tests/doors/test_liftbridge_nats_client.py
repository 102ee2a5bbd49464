"""How the door logs in at a NATS server: with all that `liftbridge.nats.*` offers, and never in clear by mistake."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Final

import nats.errors
import nkeys  # type: ignore[import-untyped]
import pytest

from shardd.config.liftbridge import LiftbridgeNats
from shardd.doors.liftbridge.nats.client import NatsClient, connect_options, number_of, wants_tls
from tests.doors.nats_peers import NatsServerProgram, linked
from tests.support.certificates import Authority
from tests.support.on_loop import on_loop


def seed(kind: int) -> bytes:
    encoded: bytes = nkeys.encode_seed(bytes([kind]) * 32, kind)
    return encoded


def public(kind: int) -> str:
    key: bytes = nkeys.from_seed(bytearray(seed(kind))).public_key
    return key.decode()


OPERATOR, ACCOUNT, USER = nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER
PASSWORD: Final = "authorization { user: lb, password: secret }"


def signed(by: int, subject: int, kind: str, name: str) -> str:
    """A token as NATS has it (its `nsc` makes them)."""

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {
        "jti": name,
        "iat": 1_700_000_000,
        "iss": public(by),
        "name": name,
        "sub": public(subject),
        "nats": {"type": kind, "version": 2, "subs": -1, "data": -1, "payload": -1}
        | ({"limits": {"subs": -1, "data": -1, "payload": -1, "conn": -1}} if kind == "account" else {}),
    }
    text = part({"typ": "JWT", "alg": "ed25519-nkey"}) + b"." + part(claims)
    signature: bytes = nkeys.from_seed(bytearray(seed(by))).sign(text)
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def prepare(way: str, directory: Path) -> tuple[str, dict[str, str]]:
    """The configuration of the server, and settings of the door."""
    (directory / "secret").write_text("secret\n")
    secret = str(directory / "secret")
    if way == "password":
        return PASSWORD, {"login_name": "lb", "password_file": secret}
    if way == "token":
        return "authorization { token: secret }", {"token_file": secret}
    if way == "nkey":
        (directory / "nkey").write_bytes(seed(USER) + b"\n")
        config = f"authorization {{ users: [ {{ nkey: {public(USER)} }} ] }}"
        return config, {"nkey_file": str(directory / "nkey")}
    if way == "credentials":
        (directory / "creds").write_text(
            f"-----BEGIN NATS USER JWT-----\n{signed(ACCOUNT, USER, 'user', 'lb')}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed(USER).decode()}\n------END USER NKEY SEED------\n"
        )
        config = (
            f"operator: {signed(OPERATOR, OPERATOR, 'operator', 'O')}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {public(ACCOUNT)}: {signed(OPERATOR, ACCOUNT, 'account', 'A')} }}"
        )
        return config, {"credentials_file": str(directory / "creds")}
    authority = Authority.make(directory)
    certificate, root = authority.sign("nats", names="IP:127.0.0.1"), authority.certificate
    files = {"cert_file": certificate, "key_file": certificate.with_suffix(".key"), "ca_file": root}
    lines = ", ".join(f'{name}: "{path}"' for name, path in files.items())
    return f"tls {{ {lines}, verify: true }}", {f"tls_{name}": str(path) for name, path in files.items()}


@pytest.mark.parametrize("way", ["password", "token", "nkey", "credentials", "tls"])
def test_the_door_logs_in_and_hears(way: str, tmp_path: Path) -> None:
    config, more = prepare(way, tmp_path)
    heard: asyncio.Queue[tuple[int, bytes, bytes, bytes, bytes]] = asyncio.Queue()

    async def deliver(*message: int | bytes) -> None:
        heard.put_nowait(message)  # type: ignore[arg-type]

    async def connected(settings: LiftbridgeNats) -> NatsClient:
        (url,) = settings.servers
        client = NatsClient(deliver, wants_tls=wants_tls(settings, url))
        await client.connect(**connect_options(settings, url))
        return client

    @on_loop
    async def talk() -> None:
        url = server.url.replace("nats://", "tls://") if way == "tls" else server.url
        settings = linked(url, **more).nats
        listening, speaking = await connected(settings), await connected(settings)
        number = number_of(await listening.listen("some.*", ""))
        await listening.listen("other", "group")
        await listening.flush()
        await listening.publish("some.thing", b"does not come back")
        await listening.flush()
        await speaking.publish("some.thing", b"hello", reply="back", headers={"a": "b"})
        assert await heard.get() == (number, b"some.thing", b"back", b"hello", b"NATS/1.0\r\na: b\r\n\r\n")
        assert heard.empty()
        await listening.close()
        await speaking.close()
        if way != "tls":
            with pytest.raises(nats.errors.Error):
                await connected(linked(server.url).nats)

    with NatsServerProgram(tmp_path, config) as server:
        talk()


def test_a_password_is_not_sent_to_a_server_that_has_no_tls(tmp_path: Path) -> None:
    _, more = prepare("password", tmp_path)

    @on_loop
    async def try_it() -> None:
        url = server.url.replace("nats://", "tls://")
        settings = linked(url, **more).nats

        async def deliver(*message: int | bytes) -> None:
            raise AssertionError

        client = NatsClient(deliver, wants_tls=wants_tls(settings, url))
        with pytest.raises(nats.errors.Error, match="no TLS"):
            await client.connect(**connect_options(settings, url))
        await client.close()

    with NatsServerProgram(tmp_path, PASSWORD) as server:
        try_it()


@pytest.mark.parametrize("name", ["credentials_file", "nkey_file", "token_file"])
def test_a_file_that_is_none_is_an_error_and_nothing_waits_for_it(name: str, tmp_path: Path) -> None:
    settings = linked("nats://127.0.0.1:1", **{name: str(tmp_path / "file")}).nats
    with pytest.raises(OSError, match="file"):
        connect_options(settings, settings.servers[0])
    for content in (b"", b"x" * 70_000, b"\xff"):
        (tmp_path / "file").write_bytes(content)
        if content or name == "credentials_file":
            with pytest.raises(ValueError, match=r"file|utf-8|decode"):
                connect_options(settings, settings.servers[0])
