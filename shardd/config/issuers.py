"""Who else may say who somebody is: `[[http.jwt.trusted_issuers]]` in the file, or one variable for each field,
`HTTP_JWT_TRUSTED_ISSUERS_<0..9>_ISSUER`, `_JWKS_URL` and so on (docs/configuration.md#trusted-issuers)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from shardd.config.digits import number_of

ISSUERS_PATH: Final = "http.jwt.trusted_issuers"
ISSUERS_MAX: Final = 10
TEXT_CHARACTERS_MAX: Final = 1024
USERS_MAX: Final = 1000
# Each takes keys of one kind: what a token says about itself decides nothing. None with a shared secret.
ALGORITHMS: Final = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA",
    "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
}  # fmt: skip
_HERE: Final = ("127.0.0.1", "::1", "localhost")
_FIELDS: Final = ("issuer", "jwks_url", "jwks_file", "audience", "algorithm", "user_id", "user_claim", "users")
_VARIABLE: Final = re.compile(rf"HTTP_JWT_TRUSTED_ISSUERS_(\d)_({'|'.join(_FIELDS).upper()})")


class TrustedIssuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One issuer. Its keys come from `jwks_url` or `jwks_file`. Who shows its token is the user with `user_id`, or
    (0) the one that `user_claim` names: by his name, or by what `users` has for it when there is any."""

    issuer: str
    audience: str
    algorithm: str
    jwks_url: str
    jwks_file: str
    user_id: int
    user_claim: str
    users: dict[str, str]


def parse_issuers(value: object) -> list[dict[str, Any]]:
    """Fields of `TrustedIssuer` for each entry. ValueError with a sentence."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > ISSUERS_MAX:
        raise ValueError(f"not a list of at most {ISSUERS_MAX} issuers")
    issuers = [_parse_issuer(entry) for entry in value]
    if len({each["issuer"] for each in issuers}) != len(issuers):
        raise ValueError("an issuer is there twice")
    return issuers


def _parse_issuer(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict) or entry.keys() - set(_FIELDS):
        raise ValueError(f"{entry!r} is no issuer with some of {', '.join(_FIELDS)}")
    issuer = _text(entry, "issuer")
    said: dict[str, Any] = {"issuer": issuer, "audience": _text(entry, "audience")}
    said |= {name: _text(entry, name, "") for name in ("jwks_url", "jwks_file", "user_claim")}
    said["algorithm"] = _text(entry, "algorithm", "RS256")
    if said["algorithm"] not in ALGORITHMS:
        raise ValueError(f"{issuer}: algorithm {said['algorithm']!r} is none of {', '.join(ALGORITHMS)}")
    if bool(said["jwks_url"]) == bool(said["jwks_file"]):
        raise ValueError(f"{issuer}: it needs jwks_url or jwks_file, one of them")
    if said["jwks_url"]:
        _check_url(issuer, said["jwks_url"])
    said["user_id"] = _number(issuer, entry.get("user_id", 0))
    said["users"] = _parse_users(issuer, entry.get("users", ""))
    if bool(said["user_id"]) == bool(said["user_claim"]):
        raise ValueError(f"{issuer}: it needs user_id (not 0, that is root) or user_claim, one of them")
    if said["users"] and not said["user_claim"]:
        raise ValueError(f"{issuer}: users without user_claim")
    return said


def _text(entry: dict[Any, Any], name: str, default: str | None = None) -> str:
    value = entry.get(name, default)
    if isinstance(value, str) and (value or default == "") and value.isprintable() and len(value) < TEXT_CHARACTERS_MAX:
        return value
    raise ValueError(f"{name}: {value!r} is no text of 1 to {TEXT_CHARACTERS_MAX - 1} characters")


def _number(issuer: str, value: object) -> int:
    found = number_of(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if found is not None and found < 2**32:
        return found
    raise ValueError(f"{issuer}: user_id {value!r} is no id of a user")


def _check_url(issuer: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port == 0 or parts.username is not None or parts.fragment or not url.isascii() or " " in url:
        raise ValueError(f"{issuer}: jwks_url {url!r} is no address of keys")
    if parts.scheme != "https" and (parts.scheme != "http" or host not in _HERE):
        raise ValueError(f"{issuer}: jwks_url {url!r}: keys come over https; over http from this host only")


def _parse_users(issuer: str, value: object) -> dict[str, str]:
    """ "value of the claim=user, ...", or a table."""
    if isinstance(value, str):
        pairs = [part.strip().rpartition("=")[::2] for part in value.split(",") if part.strip()]
    elif isinstance(value, dict):
        pairs = [*value.items()]
    else:
        raise ValueError(f"{issuer}: users {value!r} is no text")
    if len(pairs) > USERS_MAX or not all(_is_pair(*pair) for pair in pairs):
        raise ValueError(f"{issuer}: users is no list of at most {USERS_MAX} of CLAIM=USER, separated by commas")
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"{issuer}: users has a claim twice")
    return dict(pairs)


def _is_pair(said: str, user: object) -> bool:
    return bool(said and isinstance(user, str) and user and "," not in said + user and "=" not in user)


def format_issuers(issuers: Sequence[TrustedIssuer]) -> str:
    """As TOML writes them in one line."""
    return f"[{', '.join(map(_format_issuer, issuers))}]"


def _format_issuer(issuer: TrustedIssuer) -> str:
    fields = {name: getattr(issuer, name) for name in _FIELDS}
    fields["users"] = ", ".join(f"{said}={user}" for said, user in issuer.users.items())
    return f"{{ {', '.join(f'{name} = {_toml(value)}' for name, value in fields.items() if value)} }}"


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()  # a JSON string is a TOML basic string


def read_variable(suffix: str, text: str, issuers: dict[int, dict[str, Any]]) -> bool:
    """Enters a variable without its prefix into the entry it belongs to; False: it belongs to none of them."""
    found = _VARIABLE.fullmatch(suffix)
    if found is None:
        return False
    issuers.setdefault(int(found[1]), {})[found[2].lower()] = text
    return True
