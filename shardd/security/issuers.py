"""Tokens of trusted issuers (docs/protocol/http.md#trusted-issuers): JSON Web Tokens that somebody else signs. Here is
whether one is good; who shows it, the service finds out.

The issuer's entry decides how a token is read, never the token: one algorithm, keys of its kind, one audience. Keys are
public. They are fetched in threads that do nothing else, and kept for a while."""

from __future__ import annotations

import asyncio
import binascii
import logging
import os
import stat
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shardd.config.issuers import ALGORITHMS, TrustedIssuer
from shardd.runtime.fetch import FetchError, fetch
from shardd.runtime.threads import Threads
from shardd.security.access_tokens import TOKEN_TEXT_MAX

JWKS_BYTES_MAX: Final = 64 << 10
JWKS_TIMEOUT_S: Final = 5.0
KEYS_MAX: Final = 100  # of one issuer
RSA_BITS: Final = range(2048, 8193)
_EXPONENT_MAX: Final = 1 << 32
_REPORT_INTERVAL_S: Final = 10.0  # one line for each issuer, and one for all that are none
_TYPES: Final = ("jwt", "at+jwt", "application/at+jwt")
_REQUIRED: Final = ("iss", "aud", "exp", "iat")
_log = logging.getLogger(__name__)

Keys = Mapping[str | None, Any]
"""Public keys by their names."""


class Pace(msgspec.Struct, frozen=True):
    """`fresh_s`: keys are not asked for again (a file: `again_s`); `oldest_s`: they are worth something though nobody
    could be asked; `again_s`: between two tries, whatever tokens come."""

    fresh_s: float = 300.0
    oldest_s: float = 3600.0
    again_s: float = 10.0


class IssuedToken(msgspec.Struct, frozen=True):
    """What a good token says. Times in seconds."""

    issuer: TrustedIssuer
    claims: dict[str, Any]
    issued_at_s: int
    expires_at_s: int


class RefusedTokenError(Exception):
    """Why a token is worth nothing; the text is for the log."""


class _Unverified(msgspec.Struct):
    """What of a token is looked at before its signature is."""

    iss: str


class Issuers:
    """Lives on the loop thread. `fetching` waits for issuers, `verifying` computes."""

    def __init__(
        self,
        trusted: Sequence[TrustedIssuer],
        clock_skew_s: int,
        fetching: Threads,
        verifying: Threads,
        pace: Pace = Pace(),  # noqa: B008  it is frozen
    ) -> None:
        self.clock_skew_s = clock_skew_s
        self._keys = {each.issuer: _KeysOf(each, fetching, pace) for each in trusted}
        self._verifying = verifying
        self._report_at_s: dict[str, float] = {}
        if trusted:
            import jwt  # noqa: F401  takes longer than a step of the loop may

    async def verify(self, text: str) -> IssuedToken | None:
        """None for every token that is not good, and a line of the log."""
        issuer = _issuer_of(text)
        if issuer is None or not self._keys:
            return None
        keys = self._keys.get(issuer)
        if keys is None:
            self.refused("", f"{issuer[:100]!r} is not trusted")
            return None
        try:
            header = _header(text, keys.issuer)
            found = await keys.named(header)
            return await self._verifying.run(_verified, text, keys.issuer, found, self.clock_skew_s)
        except RefusedTokenError as error:
            self.refused(issuer, str(error))
        except RuntimeError:  # the worker stops
            pass
        return None

    def refused(self, issuer: str, why: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._report_at_s.get(issuer, 0.0):
            self._report_at_s[issuer] = now_s + _REPORT_INTERVAL_S
            _log.warning("a token of %s is refused: %s", issuer or "a stranger", why)


class _KeysOf:
    """Those of one issuer. Loop thread only."""

    def __init__(self, issuer: TrustedIssuer, threads: Threads, pace: Pace) -> None:
        self.issuer = issuer
        self._threads = threads
        self._pace = pace
        self._fresh_s = pace.again_s if issuer.jwks_file else pace.fresh_s
        self._keys: Keys = {}
        self._fetched_at_s = self._tried_at_s = -float("inf")
        self._fetching: asyncio.Task[None] | None = None

    async def named(self, name: str | None) -> Any:
        """RefusedTokenError. All who wait for the same keys wait for one question."""
        now_s = asyncio.get_running_loop().time()
        fresh = now_s - self._fetched_at_s < self._fresh_s
        if not fresh or self._named(name) is None:
            if self._fetching is None and now_s - self._tried_at_s >= self._pace.again_s:
                self._tried_at_s = now_s
                self._fetching = asyncio.create_task(self._fetch(), name=f"keys of {self.issuer.issuer}")
            if self._fetching is not None:
                await asyncio.shield(self._fetching)
        if asyncio.get_running_loop().time() - self._fetched_at_s >= self._pace.oldest_s:
            raise RefusedTokenError("its keys cannot be had")
        key = self._named(name)
        if key is None:
            raise RefusedTokenError(f"no key with the name {str(name)[:100]!r}")
        return key

    def _named(self, name: str | None) -> Any:
        """Without a name: the only one."""
        if name is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(name)

    async def _fetch(self) -> None:
        try:
            self._keys = await self._threads.run(read_keys, self.issuer)
            self._fetched_at_s = asyncio.get_running_loop().time()
        except (FetchError, OSError, ValueError, RuntimeError) as error:
            _log.warning("the keys of %s: %s", self.issuer.issuer, error)
        except Exception:
            _log.exception("the keys of %s", self.issuer.issuer)
        finally:
            self._fetching = None


def read_keys(issuer: TrustedIssuer) -> Keys:
    """Blocks. FetchError, OSError; ValueError with a sentence."""
    url = issuer.jwks_url
    data = fetch(url, JWKS_BYTES_MAX, JWKS_TIMEOUT_S) if url else _read_file(issuer.jwks_file)
    return parse_keys(data, issuer.algorithm)


def _read_file(path: str) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no file")
        data = file.read(JWKS_BYTES_MAX + 1)
    if len(data) > JWKS_BYTES_MAX:
        raise ValueError(f"{path}: more than {JWKS_BYTES_MAX} bytes")
    return data


def parse_keys(data: bytes, algorithm: str) -> Keys:
    """Those that fit the algorithm; the others are left out. ValueError with a sentence."""
    try:
        entries = msgspec.json.decode(data, type=dict[str, Any]).get("keys")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no set of keys: {error}") from error
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError(f"no list of at most {KEYS_MAX} keys")
    keys: dict[str | None, Any] = {}
    for entry in entries:
        key = _parse_key(entry, algorithm) if isinstance(entry, dict) else None
        if key is None:
            continue
        name = entry.get("kid")
        if not isinstance(name, str | None) or name in keys:
            raise ValueError("two keys have the same name")
        keys[name] = key
    if not keys:
        raise ValueError(f"no key for {algorithm}")
    return keys


def _parse_key(entry: dict[str, Any], algorithm: str) -> Any:
    """None when it is for something else. Shared secrets (`oct`) are none, whatever they call themselves."""
    import jwt

    kind = ALGORITHMS[algorithm]
    asked = ("RSA", None) if kind == "RSA" else ("OKP" if kind == "Ed25519" else "EC", kind)
    said = entry.get("kty"), None if kind == "RSA" else entry.get("crv")
    if said != asked or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    public = {name: value for name, value in entry.items() if name in ("kty", "crv", "n", "e", "x", "y")}
    try:
        key = jwt.PyJWK(public, algorithm).key
        if kind == "RSA" and (key.key_size not in RSA_BITS or key.public_numbers().e > _EXPONENT_MAX):
            return None
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return key


def _issuer_of(text: str) -> str | None:
    """Whom a token names as its maker; nothing is proven by that."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > TOKEN_TEXT_MAX or not text.isascii():
        return None
    try:
        return msgspec.json.decode(_decoded(parts[1]), type=_Unverified).iss
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _header(text: str, issuer: TrustedIssuer) -> str | None:
    """The name of the key. RefusedTokenError when the header is not that of a token of this issuer."""
    try:
        header = msgspec.json.decode(_decoded(text.partition(".")[0]), type=dict[str, Any])
    except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError, RecursionError) as error:
        raise RefusedTokenError("its header cannot be read") from error
    if header.get("alg") != issuer.algorithm:
        raise RefusedTokenError(f"its algorithm is {str(header.get('alg'))[:20]!r}, not {issuer.algorithm}")
    if "crit" in header or "b64" in header or str(header.get("typ", "JWT")).lower() not in _TYPES:
        raise RefusedTokenError("it is another kind of token")
    name = header.get("kid")
    if not isinstance(name, str | None):
        raise RefusedTokenError("the name of its key is no text")
    return name


def _verified(text: str, issuer: TrustedIssuer, key: Any, clock_skew_s: int) -> IssuedToken:
    """In a helper thread. RefusedTokenError."""
    import jwt

    decode: Callable[..., dict[str, Any]] = jwt.decode
    try:
        claims = decode(
            text,
            key,
            algorithms=[issuer.algorithm],
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=clock_skew_s,
            options={"require": [*_REQUIRED]},
        )
        return IssuedToken(issuer, claims, int(claims["iat"]), int(claims["exp"]))
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RefusedTokenError(f"{type(error).__name__}: {error}"[:200]) from error
