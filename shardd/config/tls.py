"""Texts of `tcp.tls.*` and `websocket.tls.*`, and what they may not say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardd.config.schema import Tls

MODES: Final = ("off", "required", "both")
VERSIONS: Final = ("1.2", "1.3")
CLIENTS: Final = ("off", "optional", "required")
CERTIFICATES_MAX: Final = 16  # TLS_PAIRS_MAX of native/src/net/tls.h
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_NAMES: Final = ("CN", "DNS", "URI", "email")


def parse_path(value: object) -> str:
    """A path, or nothing."""
    if not isinstance(value, str) or "\0" in value or "\n" in value:
        raise ValueError(f"{value!r} is no path")
    return value.strip()


def parse_ciphers(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isascii() or "\0" in value:
        raise ValueError(f"{value!r} names no ciphers")
    return value.strip()


def parse_pairs(value: object) -> list[list[str]]:
    """ "a.pem:a.key, b.pem:b.key"."""
    pairs = [part.strip().split(":") for part in parse_path(value).split(",") if part.strip()]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError(f"{value!r} is no list of CERTIFICATE:KEY, separated by commas")
    if len(pairs) >= CERTIFICATES_MAX:
        raise ValueError(f"more than {CERTIFICATES_MAX} certificates")
    return pairs


def format_pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(":".join(pair) for pair in pairs)


def parse_users(value: object) -> dict[str, str]:
    """ "CN:alice=alice, DNS:app.example=app"."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    users: dict[str, str] = {}
    for part in value.split(","):
        name, _, user = part.strip().rpartition("=")
        if not part.strip():
            continue
        if name.partition(":")[0] not in _NAMES or not name.partition(":")[2] or not user:
            raise ValueError(f"{part.strip()!r} is none of CN:name=user, DNS:name=user, URI:name=user, email:name=user")
        if name in users:
            raise ValueError(f"{name} is there twice")
        users[name] = user
    return users


def format_users(users: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={user}" for name, user in users.items())


def check(ports: Mapping[str, Tls]) -> list[str]:
    """Sentences about keys that do not fit each other. `ports`: by the section of their settings."""
    return list(dict.fromkeys(problem for section, tls in ports.items() for problem in _check(section, tls)))


def _check(section: str, tls: Tls) -> list[str]:
    problems = []
    if bool(tls.cert_file) != bool(tls.key_file):
        problems.append(f"{section}.cert_file and {section}.key_file: one of them alone says nothing")
    elif not tls.cert_file and not tls.self_signed:
        problems.append(f"{section}.cert_file: TLS is on and has no certificate; or set {section}.self_signed")
    if tls.client_certificates != "off" and not tls.client_ca_file:
        problems.append("tcp.tls.client_ca_file: certificates of clients are asked for, and nobody says whose")
    if tls.client_users and tls.client_certificates == "off":
        problems.append("tcp.tls.client_users: certificates of clients are not asked for")
    return problems
