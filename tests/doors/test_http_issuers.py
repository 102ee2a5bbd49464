"""Tokens of trusted issuers over HTTP: who they let in as whom, and when that ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http_server import HttpServer
from tests.support.issuer import AUDIENCE, NAME, IssuerServer, key_set, public, rsa_key, token

KEY = rsa_key()
WAIT_S = 60.0


def issuer(number: int, url: str, **fields: str) -> dict[str, str]:
    entry = {"issuer": NAME, "jwks_url": url, "audience": AUDIENCE} | fields
    return {f"SHARDD_HTTP_JWT_TRUSTED_ISSUERS_{number}_{name.upper()}": value for name, value in entry.items()}


class IssuerOf:
    """A server, and the issuer that it trusts."""

    def __init__(self, data: Path, more: Mapping[str, str] | None = None) -> None:
        self.issuer = IssuerServer(key_set(public(KEY)))
        mapped = {"issuer": "mapped", "user_claim": "email", "users": "alice@example.com=alice, root@example.com=iggy"}
        environment = {
            **issuer(0, self.issuer.url, user_claim="sub"),
            **issuer(1, self.issuer.url, **mapped),
            **issuer(2, self.issuer.url, issuer="fixed", user_id="1"),
            "SHARDD_HTTP_JWT_CLOCK_SKEW": "0 s",
            **(more or {}),
        }
        self.server = HttpServer(data, environment)

    def user(self, name: str) -> int:
        made = self.server.root().done("POST", "/users", {"username": name, "password": "secret", "status": "active"})
        next_second()
        return int(made["id"])


def next_second() -> None:
    """What was made before has happened in an earlier second than what is made now."""
    time.sleep(1.1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IssuerOf]:
    made = IssuerOf(tmp_path_factory.mktemp("issuers") / "data")
    with made.issuer, made.server:
        assert made.user("alice") == 1
        yield made


def status(server: HttpServer, text: str, path: str = "/streams") -> int:
    """Of a request with a token; 403 is somebody without rights."""
    client = server.client(text)
    answer = client.get(path)
    client.close()
    assert answer.status != 401 or answer.body == b""
    return answer.status


def test_a_token_of_an_issuer_lets_its_user_in(parts: IssuerOf) -> None:
    for text in (
        token(KEY),
        token(KEY, iss="mapped", email="alice@example.com", sub="x"),
        token(KEY, iss="fixed", sub="x"),
    ):
        client = parts.server.client(text)
        assert client.get("/streams").error == (403, 41)  # who comes in has the rights of the user
        assert client.get("/users/alice").json["username"] == "alice"


def test_it_names_a_user_or_nobody_and_never_root(parts: IssuerOf) -> None:
    for claims in (
        {"sub": "iggy"}, {"sub": "nobody"}, {"sub": "1"}, {"sub": ""}, {"sub": None}, {"sub": "Alice"},
        {"iss": "mapped", "email": "root@example.com"}, {"iss": "mapped", "email": "alice"}, {"iss": "mapped"},
        {"iss": "mapped", "email": "iggy"}, {"iss": "stranger"},
    ):  # fmt: skip
        changed: dict[str, Any] = claims
        assert status(parts.server, token(KEY, **changed)) == 401, claims
    assert "it names root" in parts.server.log()
    assert "'stranger' is not trusted" in parts.server.log()


def test_it_gives_birth_to_no_token_and_cannot_be_given_back(parts: IssuerOf) -> None:
    text, client = token(KEY), parts.server.client()
    assert client.post("/users/refresh-token", {"token": text}).error == (401, 78)
    assert client.post("/personal-access-tokens/login", {"token": text}).status == 404
    bearer = parts.server.client(text)
    assert bearer.delete("/users/logout").error == (400, 3)
    assert bearer.get("/users/alice").status == 200


def test_attacks_on_the_signature_hear_nothing(parts: IssuerOf) -> None:
    now = int(time.time())
    for text in (
        token(rsa_key()), token(KEY, aud="others"), token(KEY, exp=now - 1), token(KEY, nbf=now + 60),
        token(None, "none"), token("x" * 64, "HS256"), token(KEY, "RS384"), token(KEY, kid="unknown"),
    ):  # fmt: skip
        assert status(parts.server, text) == 401
    assert status(parts.server, token(KEY)) == 403


@pytest.mark.parametrize("how", ["deleted", "inactive", "expired"])
def test_a_login_ends_with_its_user_and_its_token(parts: IssuerOf, how: str) -> None:
    """At once, also where it was remembered. A user of the same name is somebody else: what was good for the first
    one is not for the second."""
    name, root = f"leaver-{how}", parts.server.root()
    parts.user(name)
    until = int(time.time()) + (5 if how == "expired" else 600)
    text = token(KEY, sub=name, exp=until)
    client = parts.server.client(text)
    assert client.get("/streams").error == (403, 41)
    if how == "deleted":
        root.done("DELETE", f"/users/{name}")
        assert client.get("/streams").status == 401
        next_second()
        parts.user(name)
    elif how == "inactive":
        root.done("PUT", f"/users/{name}", {"status": "inactive"})
    else:
        deadline = time.monotonic() + WAIT_S
        while client.get("/streams").status != 401 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert client.get("/streams").status == 401
    assert status(parts.server, text) == 401
    if how == "deleted":
        assert status(parts.server, token(KEY, sub=name)) == 403


def test_new_keys_are_found_and_old_ones_end(tmp_path: Path) -> None:
    new_key = rsa_key()
    made = IssuerOf(tmp_path / "data")
    with made.issuer, made.server:
        made.user("alice")
        assert status(made.server, token(KEY)) == 403
        made.issuer.keys = key_set(public(new_key, "second"))
        deadline = time.monotonic() + WAIT_S
        while status(made.server, token(new_key, kid="second")) != 403:  # asked again after a while only
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert made.server.client(token(KEY, sub="alice", jti="x")).get("/streams").status in (401, 403)
        assert len(made.issuer.asked) <= 2 * 3 * 2  # two workers, three entries


def test_an_issuer_that_does_not_answer_costs_the_others_nothing(tmp_path: Path) -> None:
    release = threading.Event()
    made = IssuerOf(tmp_path / "data")

    def silent(handler: BaseHTTPRequestHandler) -> None:
        release.wait(WAIT_S)

    made.issuer.answer = silent
    with made.issuer, made.server, ThreadPoolExecutor(50) as pool:
        try:
            root = made.server.root()
            texts = [token(KEY, jti=str(number)) for number in range(50)]
            waiting = [pool.submit(status, made.server, text) for text in texts]
            for _ in range(100):
                assert root.get("/streams").status == 200
            assert {each.result(WAIT_S) for each in waiting} == {401}
            assert "no whole answer within 5 s" in made.server.log()
        finally:
            release.set()


def test_no_key_of_an_issuer_is_in_the_door(tmp_path: Path) -> None:
    """The door asks nobody, and knows no issuer: workers do."""
    made = IssuerOf(tmp_path / "data")
    with made.issuer, made.server:
        made.user("alice")
        assert status(made.server, token(KEY)) == 403
        door = made.server.door()
        maps = Path(f"/proc/{door.pid}/maps").read_text()
        assert "httptools" in maps  # it is the right process
        assert "cryptography" not in maps and "_rust" not in maps
