"""Who may ask over HTTP: logins, access tokens and the many ways in which they end."""

from __future__ import annotations

import base64
import hmac
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from shardd.doors.process import NICE
from tests.doors.http_server import HttpClient, HttpServer
from tests.support import wire
from tests.support.serving import Serving

pytestmark = pytest.mark.usefixtures("hashes_as_served")

NEVER = (1 << 64) - 1
SERVER: Final = Serving(HttpServer)


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    claims: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def signed(claims: object, key: bytes, algorithm: str = "HS256", hash_: str = "sha256") -> str:
    parts = [msgspec.json.encode(each) for each in ({"alg": algorithm, "typ": "JWT"}, claims)]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mark = hmac.new(key, text, hash_).digest() if key else b""
    return b".".join((text, base64.urlsafe_b64encode(mark).rstrip(b"="))).decode()


def key_of(server: HttpServer) -> bytes:
    return (server.data_dir / "access.key").read_bytes().strip()


def lets_in(server: HttpServer, token: str, source: str = "127.0.0.1") -> bool:
    client = server.client(token, source)
    answer = client.get("/streams")
    client.close()
    assert answer.status in (200, 401), answer
    assert answer.status == 200 or answer.body == b""
    return answer.status == 200


def test_paths_that_ask_for_no_login(server: HttpServer) -> None:
    client = server.client()
    assert client.get("/").body == b"Iggy API"
    assert client.get("/ping").body == b"pong"
    for path in ("/streams", "/nowhere", "/ping/", "/%70ing", "/streams/../ping", "//ping", "/PING"):
        answer = client.get(path)
        assert (answer.status, answer.body) == (401, b""), path


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic aWdneTppZ2d5", "Bearer x", "Bearer a.b.c"])
def test_who_shows_no_token_hears_nothing(server: HttpServer, header: str) -> None:
    client = server.client()
    for method, path in (("GET", "/streams"), ("DELETE", "/streams/1"), ("POST", "/nowhere")):
        answer = client.ask(method, path, headers={"Authorization": header} if header else {})
        assert (answer.status, answer.body) == (401, b"")


def test_two_tokens_are_none(server: HttpServer) -> None:
    root = server.root()
    with server.connect() as stream:
        line = f"Authorization: Bearer {root.token}\r\n"
        stream.sendall(f"GET /streams HTTP/1.1\r\nHost: localhost\r\n{line}{line}Connection: close\r\n\r\n".encode())
        assert stream.makefile("rb").read().startswith(b"HTTP/1.1 401 ")


def test_wrong_logins_have_one_status(server: HttpServer) -> None:
    client = server.client()
    for username, password in (("iggy", "wrong"), ("nobody", "iggy"), ("x", "iggy"), ("iggy", ""), ("", "")):
        answer = client.post("/users/login", {"username": username, "password": password})
        assert answer.error == (400, 42)
        assert answer.json["code"] == "invalid_credentials"
    assert client.post("/personal-access-tokens/login", {"token": "nothing"}).status == 404
    assert client.post("/users/refresh-token", {"token": "nothing"}).error == (401, 78)
    assert client.post("/users/login", {"username": 1, "password": "iggy"}).status == 422
    assert client.post("/users/login", b"{").status == 400
    assert client.ask("POST", "/users/login", b"{}", {"Content-Type": "text/plain"}).status == 415


def test_a_login_is_that_of_the_user(server: HttpServer) -> None:
    answer = server.client().post("/users/login", {"username": "iggy", "password": "iggy", "context": "x"})
    assert answer.json["user_id"] == 0
    token = answer.json["access_token"]
    claims = claims_of(token["token"])
    assert claims["exp"] == token["expiry"] and claims["exp"] - claims["iat"] == 3600
    assert (claims["sub"], claims["iss"], claims["aud"]) == ("0", "iggy.apache.org", "iggy.apache.org")
    assert lets_in(server, token["token"])
    assert token["token"] not in server.log()


def test_tokens_that_others_have_made(server: HttpServer) -> None:
    """Of each one that is let in, one thing is changed."""
    claims, key = claims_of(server.root().token), key_of(server)
    assert lets_in(server, signed(claims, key))  # what is changed below is what keeps it out
    now = int(time.time())
    wrong: list[dict[str, object]] = [
        {"aud": "others"}, {"iss": "others"}, {"exp": now - 60}, {"nbf": now + 60}, {"iat": now + 60},
        {"sub": "1"}, {"sub": 0}, {"sub": ""}, {"sub": "-1"}, {"sub": "9" * 5000}, {"inc": claims["inc"] + 1},
        {"mark": 1}, {"pwd": "0" * 16}, {"jti": ""}, {"jti": "zz"}, {"exp": "never"}, {"exp": 1e300}, {"inc": "1"},
    ]  # fmt: skip
    for change in wrong:
        assert not lets_in(server, signed({**claims, **change}, key)), change
    for name in claims:
        assert not lets_in(server, signed({each: value for each, value in claims.items() if each != name}, key)), name


def test_tokens_that_are_signed_in_another_way(server: HttpServer) -> None:
    claims, key = claims_of(server.root().token), key_of(server)
    assert not lets_in(server, signed(claims, b"x" * 64))
    for algorithm in ("none", "None", "NONE", ""):
        assert not lets_in(server, signed(claims, b"", algorithm))
        assert not lets_in(server, signed(claims, key, algorithm))
    assert not lets_in(server, signed(claims, key, "HS512", "sha512"))
    assert not lets_in(server, signed(claims, key, "RS256"))
    text = signed(claims, key)
    for broken in (text[:-2], text + "A", text.replace(".", "..", 1), text + ".", "." + text, text.rpartition(".")[0]):
        assert not lets_in(server, broken)
    assert not lets_in(server, signed({**claims, "more": "x" * 5000}, key))


def test_a_token_that_was_given_back_is_worth_nothing(server: HttpServer) -> None:
    root, other = server.root(), server.root()
    same = server.client(root.token)
    assert same.get("/streams").status == 200
    assert root.delete("/users/logout").status == 204
    for client in (root, same):
        assert client.get("/streams").status == 401
    assert root.delete("/users/logout").status == 401
    assert not lets_in(server, root.token, "127.0.0.2")  # where nobody has remembered its login
    assert other.get("/streams").status == 200
    assert server.client().post("/users/refresh-token", {"token": root.token}).error == (401, 78)


def test_a_token_is_changed_once(server: HttpServer) -> None:
    root = server.root()
    with ThreadPoolExecutor(8) as pool:
        clients = [server.client() for _ in range(8)]
        answers = [*pool.map(lambda each: each.post("/users/refresh-token", {"token": root.token}), clients)]
    assert sorted(answer.status for answer in answers) == [200] + [401] * 7
    assert root.get("/streams").status == 401
    [token] = [answer.json["access_token"]["token"] for answer in answers if answer.status == 200]
    assert lets_in(server, token)


def test_personal_tokens_are_bearers_and_logins(server: HttpServer) -> None:
    root = server.root()
    text = root.done("POST", "/personal-access-tokens", {"name": "door", "expiry": 0})["token"]
    assert lets_in(server, text)
    answer = server.client().post("/personal-access-tokens/login", {"token": text})
    assert answer.json["user_id"] == 0
    assert lets_in(server, answer.json["access_token"]["token"])
    assert server.client(text).delete("/users/logout").error == (400, 3)  # deleting it ends it
    client = server.client(text)
    assert client.get("/streams").status == 200
    root.done("DELETE", "/personal-access-tokens/door")
    assert client.get("/streams").status == 401


@pytest.mark.parametrize("how", ["password", "inactive", "deleted"])
def test_tokens_end_with_what_they_rest_on(server: HttpServer, how: str) -> None:
    """At once, at every worker, also where a login was remembered."""
    root, name = server.root(), f"leaver-{how}"
    user = root.done("POST", "/users", {"username": name, "password": "secret", "status": "active"})
    clients = [server.logged_in(name, "secret") for _ in range(4)]
    for client in clients:
        assert client.get("/streams").error == (403, 41)
    if how == "password":
        passwords = {"current_password": "secret", "new_password": "better"}
        root.done("PUT", f"/users/{name}/password", passwords)
    elif how == "inactive":
        root.done("PUT", f"/users/{name}", {"status": "inactive"})
    else:
        root.done("DELETE", f"/users/{name}")
        again = root.done("POST", "/users", {"username": name, "password": "secret"})
        assert again["id"] == user["id"]
    for client in clients:
        answer = client.get("/streams")
        assert (answer.status, answer.body) == (401, b"")


def test_token_that_changes_its_password_stays_and_all_others_of_the_user_end(tmp_path: Path) -> None:
    """Also for a second change, after a restart, and until somebody else changes the password."""
    server = HttpServer(tmp_path / "data")

    def change(by: HttpClient, before: str, after: str) -> None:
        by.done("PUT", "/users/owner/password", {"current_password": before, "new_password": after})

    with server:
        root = server.root()
        root.done("POST", "/users", {"username": "owner", "password": "secret", "status": "active"})
        first, second = (server.logged_in("owner", "secret") for _ in range(2))
        change(first, "secret", "second")
        assert first.get("/streams").error == (403, 41)  # the user has no rights, and the token holds
        assert second.get("/streams").status == 401
        change(first, "second", "third")
        assert first.get("/streams").status == 403
    with server:
        kept, third = server.client(first.token), server.logged_in("owner", "third")
        assert kept.get("/streams").status == third.get("/streams").status == 403
        change(third, "third", "fourth")
        assert (kept.get("/streams").status, third.get("/streams").status) == (401, 403)
        change(server.root(), "fourth", "fifth")
        assert third.get("/streams").status == 401
        assert lets_in(server, root.token)


def test_token_that_stayed_over_a_change_of_its_password_can_be_given_back(server: HttpServer) -> None:
    server.root().done("POST", "/users", {"username": "giver", "password": "secret", "status": "active"})
    client = server.logged_in("giver", "secret")
    client.done("PUT", "/users/giver/password", {"current_password": "secret", "new_password": "better"})
    assert client.delete("/users/logout").status == 204
    assert client.get("/streams").status == 401


def test_a_token_ends_by_itself(tmp_path: Path) -> None:
    short = {"SHARDD_HTTP_JWT_ACCESS_TOKEN_EXPIRY": "1 s", "SHARDD_HTTP_JWT_CLOCK_SKEW": "0 s"}
    with HttpServer(tmp_path / "data", short) as server:
        root = server.root()
        deadline = time.monotonic() + 60
        while root.get("/streams").status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert root.get("/streams").status == 401


def test_what_was_given_back_stays_so_after_a_restart(tmp_path: Path) -> None:
    server = HttpServer(tmp_path / "data")
    with server:
        kept, given_back = server.root(), server.root()
        assert given_back.delete("/users/logout").status == 204
    key = key_of(server)
    assert (server.data_dir / "access.key").stat().st_mode & 0o777 == 0o600
    with server:
        assert key_of(server) == key
        assert lets_in(server, kept.token)
        assert not lets_in(server, given_back.token)


def test_keys_are_changed_one_behind_the_other(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    old, new = "old-" * 8, "new-" * 8
    server = HttpServer(tmp_path / "data", {"SHARDD_HTTP_JWT_KEY_FILE": str(keys)})
    keys.write_text(f"{old}\n")
    with server:
        before = server.root()
    keys.write_text(f"{new}\n{old}\n")
    with server:
        assert lets_in(server, before.token)
        after = server.root()
        assert signed(claims_of(after.token), new.encode()).rpartition(".")[2]
    keys.write_text(f"{new}\n")
    with server:
        assert not lets_in(server, before.token)
        assert lets_in(server, after.token)
    assert not (server.data_dir / "access.key").exists()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [("short\n", 0o600, "less than 32"), ("x" * 40, 0o644, "0600"), ("", 0o600, "1 to 8"), (None, 0, "No such file")],
)
def test_wrong_key_files_are_refused_in_a_sentence(tmp_path: Path, text: str | None, mode: int, said: str) -> None:
    keys = tmp_path / "keys"
    if text is not None:
        keys.write_text(text)
        keys.chmod(mode)
    server = HttpServer(tmp_path / "data", {"SHARDD_HTTP_JWT_KEY_FILE": str(keys)})
    server.spawn()
    assert server.wait() == 1
    assert "http.jwt.key_file" in server.log() and said in server.log()


def test_a_door_that_is_killed_comes_back_and_tokens_go_on(server: HttpServer) -> None:
    root = server.root()
    with wire.connect(server.address) as tcp:
        door = server.door()
        door.kill()
        again = server.door(other_than=door.pid)
        tcp.ping()
        assert again.nice() == NICE
    assert HttpClient(server.http_address, root.token).get("/streams").status == 200
