"""`http.*`: values, their texts, and what they may not say together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from shardd.config.issuers import TrustedIssuer

if TYPE_CHECKING:
    from shardd.config.schema import Settings

REQUEST_BYTES_MAX: Final = 7 << 20  # of a body: with what stands around it it fits into a frame of a door (8 MiB)
KEY_BYTES_MIN: Final = 32  # of access tokens
PROCESSES_MAX: Final = 16
WORDS_MAX: Final = 64
_WORD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", re.ASCII)  # a token of HTTP
_CLAIM: Final = re.compile(r"[\x21-\x7e]{1,128}")


class HttpCors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`http.cors.*`: what pages of other origins may do in a browser."""

    enabled: bool
    allowed_origins: tuple[str, ...]
    allowed_methods: tuple[str, ...]
    allowed_headers: tuple[str, ...]
    exposed_headers: tuple[str, ...]
    allow_credentials: bool


class HttpJwt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`http.jwt.*`: access tokens. `key_file` "": a key of the data directory, made at the first start."""

    issuer: str
    audience: str
    access_token_expiry_ms: int
    clock_skew_ms: int
    key_file: str
    trusted_issuers: tuple[TrustedIssuer, ...]


class HttpTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`http.tls.*`. Without a certificate of its own the door shows the first one of TCP."""

    enabled: bool
    self_signed: bool
    cert_file: str
    key_file: str


class HttpMetrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`http.metrics.*`: `GET /metrics` with eight counts and no name, for everybody, as Iggy has it."""

    enabled: bool


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`http.*`: the door for HTTP. `address` as that of TCP. `allowed_hosts`: further names of it
    (hosts.py). `access_log`: a line for each request. `cpus`: where its
    processes run, as cpus.parse_cpus has it; "": on all."""

    enabled: bool
    address: str
    allowed_hosts: tuple[str, ...]
    processes: int
    cpus: str
    max_request_size_bytes: int
    cors: HttpCors
    jwt: HttpJwt
    tls: HttpTls
    metrics: HttpMetrics
    access_log: bool


def parse_words(value: object) -> list[str]:
    """Names of methods or headers in a list, or in a text with commas. ValueError with a sentence."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > WORDS_MAX:
        raise ValueError(f"not a list of at most {WORDS_MAX} names")
    for entry in entries:
        if not isinstance(entry, str) or not _WORD.fullmatch(entry):
            raise ValueError(f"{entry!r} is no name of a method or a header")
    return entries


def parse_claim(value: object) -> str:
    if not isinstance(value, str) or not _CLAIM.fullmatch(value):
        raise ValueError(f"{value!r} is no name of 1 to 128 characters without blanks")
    return value


def check(settings: Settings) -> list[str]:
    """Sentences about keys that do not fit each other."""
    http = settings.http
    if not http.enabled:
        return []
    if not http.address.endswith(":0") and http.address in (settings.tcp.address, settings.websocket.address):
        return ["http.address: another port has it"]
    if http.cors.enabled and http.cors.allow_credentials and "*" in http.cors.allowed_origins:
        return ["http.cors.allow_credentials: browsers refuse it for any origin; name http.cors.allowed_origins"]
    if any(each.issuer == http.jwt.issuer for each in http.jwt.trusted_issuers):
        return ["http.jwt.trusted_issuers: one has the name of http.jwt.issuer, whose tokens this server makes"]
    return []
