"""Tokens of trusted issuers: which are good, how keys are had, and what an issuer that misbehaves costs."""

from __future__ import annotations

import asyncio
import base64
import hmac
import http.server
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from shardd.config.issuers import TrustedIssuer
from shardd.runtime.fetch import FetchError, fetch
from shardd.runtime.helper_threads import HelperThreads
from shardd.security.issuers import JWKS_BYTES_MAX, KEYS_MAX, Issuers, Pace, parse_keys
from tests.support.issuer import AUDIENCE, NAME, IssuerServer, key_set, public, rsa_key, token

KEY = rsa_key()
OTHER_KEY = rsa_key()
AT_ONCE = Pace(again_s=0.0)


def trusted(url: str = "", file: str = "", algorithm: str = "RS256") -> TrustedIssuer:
    return TrustedIssuer(NAME, AUDIENCE, algorithm, url, file, 0, "sub", {})


async def verified(issuer: TrustedIssuer, *texts: str, pace: Pace = AT_ONCE) -> list[bool]:
    """Which of the tokens are good, one after the other."""
    fetching, verifying = HelperThreads(1, "issuers"), HelperThreads(1, "tokens")
    try:
        issuers = Issuers([issuer], 0, fetching, verifying, pace)
        return [await issuers.verify(text) is not None for text in texts]
    finally:
        await fetching.close()
        await verifying.close()


def good(tmp_path: Path, *texts: str, keys: bytes | None = None, algorithm: str = "RS256") -> list[bool]:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(public(KEY)) if keys is None else keys)
    return asyncio.run(verified(trusted(file=str(file), algorithm=algorithm), *texts))


def hmac_signed(header: dict[str, Any], secret: bytes) -> str:
    """A token with a mark that whoever knows the public key can make."""
    now = int(time.time())
    claims = {"iss": NAME, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600}
    parts = [base64.urlsafe_b64encode(msgspec.json.encode(each)).rstrip(b"=") for each in (header, claims)]
    text = b".".join(parts)
    mark = hmac.new(secret, text, "sha256").digest() if secret else b""
    return (text + b"." + base64.urlsafe_b64encode(mark).rstrip(b"=")).decode()


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", KEY), ("RS512", KEY), ("PS256", KEY),
        ("ES256", ec.generate_private_key(ec.SECP256R1())), ("ES384", ec.generate_private_key(ec.SECP384R1())),
        ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
    ],
)  # fmt: skip
def test_a_token_of_the_issuer_is_good(algorithm: str, key: Any, tmp_path: Path) -> None:
    keys = key_set({"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}, public(key), public(key, "enc", use="enc"))
    texts = token(key, algorithm), token(key, algorithm, kid=None), token(key, algorithm, aud=["x", AUDIENCE])
    assert good(tmp_path, *texts, keys=keys, algorithm=algorithm) == [True] * 3


def test_what_is_changed_in_a_good_token_makes_it_worthless(tmp_path: Path) -> None:
    now = int(time.time())
    changes: list[dict[str, Any]] = [
        {"aud": "others"}, {"aud": None}, {"aud": []}, {"iss": "https://others.example"}, {"iss": None},
        {"exp": now - 1}, {"exp": None}, {"exp": "never"}, {"exp": float("inf")}, {"iat": None}, {"iat": now + 60},
        {"nbf": now + 60}, {"more": "x" * 5000},
    ]  # fmt: skip
    texts = [token(KEY, **change) for change in changes]
    assert good(tmp_path, token(KEY), *texts) == [True] + [False] * len(texts)


def test_another_key_another_name_and_another_kind_of_token(tmp_path: Path) -> None:
    texts = [
        token(OTHER_KEY), token(KEY, kid="second"), token(KEY, header={"crit": ["exp"]}),
        token(KEY, header={"typ": "logout+jwt"}), token(KEY, "RS512"), token(KEY, "PS256"),
        token(ec.generate_private_key(ec.SECP256R1()), "ES256"),
    ]  # fmt: skip
    fine = [token(KEY, header={"typ": "at+jwt"})]
    assert good(tmp_path, *fine, *texts) == [True] + [False] * len(texts)
    two = key_set(public(KEY), public(OTHER_KEY, "second"))
    assert good(tmp_path, token(KEY, kid=None), token(OTHER_KEY, kid="second"), keys=two) == [False, True]


def test_no_header_chooses_how_a_token_is_read(tmp_path: Path) -> None:
    """`none`, and the public key as if it were a shared secret."""
    pem = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    secrets = [pem, pem.strip(), public(KEY)["n"].encode(), b"c2VjcmV0", b"secret", b""]
    texts = [hmac_signed({"alg": "HS256", "kid": "first"}, secret) for secret in secrets]
    texts += [hmac_signed({"alg": "RS256", "kid": "first"}, secret) for secret in secrets]
    texts += [hmac_signed({"alg": name, "kid": "first"}, b"") for name in ("none", "None", "NONE", "")]
    texts += [hmac_signed({"kid": "first"}, b""), hmac_signed({"alg": "HS256", "kid": "secret"}, b"secret")]
    keys = key_set(public(KEY), {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"})
    assert good(tmp_path, token(KEY), *texts, keys=keys) == [True] + [False] * len(texts)


def test_broken_texts_are_no_tokens(tmp_path: Path) -> None:
    text = token(KEY)
    head, body, mark = text.split(".")
    deep = base64.urlsafe_b64encode(b"[" * 2000).decode().rstrip("=")
    texts = [
        "", ".", "..", "a.b.c", f"{head}.{body}.", f"{head}.{body}", text + ".", f".{text}", f"é.{body}.{mark}",
        f"{deep}.{body}.{mark}", f"{head}.{deep}.{mark}", f"{head}.{body}.{mark[:-4]}AAAA", f"{head}..{mark}",
    ]  # fmt: skip
    assert good(tmp_path, *texts) == [False] * len(texts)


@pytest.mark.parametrize(
    "keys",
    [
        b"", b"{", b"[]", b"{}", b'{"keys": 5}', b'{"keys": []}', b'{"keys": [5, {}]}', b"[" * 100_000,
        key_set(public(rsa_key(1024))), key_set(public(KEY), public(OTHER_KEY)), key_set(public(KEY, kid=5)),
        key_set(public(KEY, alg="RS512")), key_set(public(KEY, use="enc")), key_set(public(KEY, n="AA")),
        key_set(*[public(KEY, str(number)) for number in range(KEYS_MAX + 1)]),
        key_set({**public(ec.generate_private_key(ec.SECP256R1())), "alg": "RS256"}),
    ],
)  # fmt: skip
def test_sets_of_keys_that_are_none(keys: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keys(keys, "RS256")


def test_a_private_part_in_a_set_of_keys_is_not_read() -> None:
    private = KEY.private_numbers().d
    shown = public(KEY, d=base64.urlsafe_b64encode(private.to_bytes(256, "big")).decode())
    assert isinstance(parse_keys(key_set(shown), "RS256")["first"], rsa.RSAPublicKey)


def test_a_file_that_is_none_or_too_large(tmp_path: Path) -> None:
    large = key_set(public(KEY)) + b" " * JWKS_BYTES_MAX
    assert good(tmp_path, token(KEY), keys=large) == [False]
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        assert asyncio.run(verified(trusted(file=str(file)), token(KEY))) == [False]


def test_keys_are_changed_and_old_ones_end() -> None:
    async def scenario(server: IssuerServer) -> None:
        fetching, verifying = HelperThreads(1, "issuers"), HelperThreads(1, "tokens")
        issuers = Issuers([trusted(server.url)], 0, fetching, verifying, AT_ONCE)
        old, new = token(KEY), token(OTHER_KEY, kid="second")
        assert [await issuers.verify(text) is not None for text in (old, old, old)] == [True] * 3
        assert len(server.asked) == 1  # kept
        server.keys = key_set(public(OTHER_KEY, "second"))
        assert await issuers.verify(new) is not None  # a name that is not known is asked for
        assert await issuers.verify(old) is None
        await fetching.close()
        await verifying.close()

    with IssuerServer(key_set(public(KEY))) as server:
        asyncio.run(scenario(server))


def test_unknown_names_of_keys_are_asked_for_now_and_then_only() -> None:
    with IssuerServer(key_set(public(KEY))) as server:
        texts = [token(KEY, kid=f"unknown-{number}") for number in range(50)]
        assert asyncio.run(verified(trusted(server.url), *texts, token(KEY), pace=Pace())) == [False] * 50 + [True]
        assert len(server.asked) == 1


def test_keys_hold_for_a_while_when_the_issuer_is_gone() -> None:
    async def scenario(server: IssuerServer, pace: Pace, after: bool) -> None:
        fetching, verifying = HelperThreads(1, "issuers"), HelperThreads(1, "tokens")
        issuers = Issuers([trusted(server.url)], 0, fetching, verifying, pace)
        assert await issuers.verify(token(KEY)) is not None
        server.answer = lambda handler: handler.send_error(500)
        assert (await issuers.verify(token(KEY)) is not None) == after
        await fetching.close()
        await verifying.close()

    for pace, after in ((Pace(0.0, 3600.0, 0.0), True), (Pace(0.0, 0.0, 0.0), False)):
        with IssuerServer(key_set(public(KEY))) as server:
            server.answer = None
            if after:
                asyncio.run(scenario(server, pace, after))
            else:
                assert asyncio.run(verified(trusted(server.url), token(KEY), pace=pace)) == [False]


def redirect(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "/elsewhere")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(1 << 16):
            handler.wfile.write(b" " * 4096)
    except OSError:
        handler.close_connection = True


def endless_head(handler: http.server.BaseHTTPRequestHandler) -> None:
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(1 << 16):
            handler.wfile.write(b"X-%d: %s\r\n" % (number, b"y" * 4096))
    except OSError:
        handler.close_connection = True


def cut(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(key_set(public(KEY)))


def zipped(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    handler.wfile.write(key_set(public(KEY)))


@pytest.mark.parametrize("answer", [redirect, endless, endless_head, cut, zipped], ids=lambda each: each.__name__)
def test_an_issuer_that_redirects_floods_or_cuts_has_no_keys(answer: Any) -> None:
    with IssuerServer(key_set(public(KEY)), answer) as server:
        assert asyncio.run(verified(trusted(server.url), token(KEY))) == [False]
        assert set(server.asked) == {"/keys"}  # nobody went elsewhere


def test_an_issuer_that_drips_is_left_in_time() -> None:
    stop = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not stop.wait(0.05):
            handler.wfile.write(b"X")

    with IssuerServer(answer=drip) as server:
        try:
            with pytest.raises(FetchError, match=r"within 0\.3 s"):
                fetch(server.url, 1000, 0.3)
        finally:
            stop.set()


def test_who_waits_for_a_slow_issuer_waits_with_the_others_and_alone() -> None:
    """One question for all who wait; whoever shows a token of another issuer does not wait."""
    release = threading.Event()

    def slow(handler: http.server.BaseHTTPRequestHandler) -> None:
        release.wait(60)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(key_set(public(KEY)))

    async def scenario(slow_url: str, fast_url: str) -> None:
        fetching, verifying = HelperThreads(2, "issuers"), HelperThreads(1, "tokens")
        fast = msgspec.structs.replace(trusted(fast_url), issuer="fast")
        issuers = Issuers([trusted(slow_url), fast], 0, fetching, verifying, AT_ONCE)
        waiting = [asyncio.create_task(issuers.verify(token(KEY))) for _ in range(20)]
        await asyncio.sleep(0)
        assert await issuers.verify(token(OTHER_KEY, iss="fast")) is not None
        assert not any(task.done() for task in waiting)
        release.set()
        assert all(await asyncio.gather(*waiting))
        await fetching.close()
        await verifying.close()

    with IssuerServer(answer=slow) as server, IssuerServer(key_set(public(OTHER_KEY))) as fast:
        asyncio.run(scenario(server.url, fast.url))
        assert len(server.asked) == 1


def test_the_log_has_the_reason_and_never_the_token(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    text = token(KEY, aud="others")
    assert good(tmp_path, *[text] * 20) == [False] * 20
    [line] = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert NAME in line and "udience" in line
    assert not any(part in caplog.text for part in text.split("."))
