"""Where a server is and who asks: connection strings, the environment, contexts.

    shardd://name:password@host:8090?deadline=30     shardd://token@host
    shardd+tls://host?ca_file=ca.pem&certificate_file=me.pem&key_file=me.key&server_name=broker.example
    shardd+unix:///run/shardd/shardd.sock

A password or a token may be percent-encoded; of its signs only `%` and `?` have to be, and in a token for shardd+unix
a `/` at its beginning.

In order: what is given, SHARDD_URL, the context that SHARDD_CONTEXT names, the current context of
~/.config/shardd/contexts.toml, 127.0.0.1:8090:

    current = "home"
    [contexts.home]
    url = "shardd://127.0.0.1:8090"
    username = "iggy"            # or token = "...", or token_file = "path"
    password = "..."
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shardd.client.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT: Final = 8090
UNIX_PATH_BYTES_MAX: Final = 107  # sun_path without the zero behind it
_LABEL_CHARACTERS_MAX: Final = 63
_OF_TLS: Final = ("ca_file", "certificate_file", "key_file", "server_name")
_KEYS: Final = {"url", "username", "password", "token", "token_file"}


@dataclass(frozen=True)
class Settings:
    """`deadline_s`: for each call, reconnects included. `connect_timeout_s`: for one attempt with its login.
    `request_timeout_s`: how long a connection may bring nothing while an answer is awaited, before another one is
    tried, and used if it is answered, for requests that may be sent again; at most a third of the deadline. `window`:
    requests on the way at a time. `tls` trusts the authorities of the host, or those of `ca_file`; `server_name` is
    what the certificate has to be for, when that is not `host`. `unix_path`: instead of `host` and `port`."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    username: str = ""
    password: str = ""
    token: str = ""
    deadline_s: float = 30.0
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 10.0
    window: int = 32
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""
    unix_path: str = ""

    def __post_init__(self) -> None:
        """SettingsError for an address to which no connection can ever be made: no attempt is begun for it."""
        _check_host(self.host)
        if len(os.fsencode(self.unix_path)) > UNIX_PATH_BYTES_MAX:
            raise SettingsError(
                f"the path of the Unix socket has {len(os.fsencode(self.unix_path))} bytes; the system takes"
                f" {UNIX_PATH_BYTES_MAX} at most, so give the server a shorter one"
            )

    def __repr__(self) -> str:
        """Without secrets."""
        who = "token" if self.token else repr(self.username)
        return f"Settings({self.address}, {who})"

    @property
    def patience_s(self) -> float:
        return min(self.request_timeout_s, self.deadline_s / 3)

    @property
    def address(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _check_host(host: str) -> None:
    """As the encoding of names for the resolver does, which takes long to import."""
    try:
        labels = host.encode("ascii" if host.isascii() else "idna").decode().removesuffix(".").split(".")
    except UnicodeError:
        raise SettingsError(f"{host[:80]!r} cannot be the name of a host") from None
    if "\0" in host or (host and not all(0 < len(each) <= _LABEL_CHARACTERS_MAX for each in labels)):
        raise SettingsError(
            f"{host[:80]!r} cannot be the name of a host: between its dots there are 1 to {_LABEL_CHARACTERS_MAX} signs"
        )


def parted(text: str) -> tuple[str, str, str]:
    """The scheme, the login and the rest of a connection string. A login may have signs of addresses: more than half of
    all tokens have a `/`."""
    scheme, rest = text.split("://", 1) if "://" in text else ("shardd", text)
    if scheme == "shardd+unix":
        at = -1 if rest.startswith("/") else rest.find("@/")
    else:
        at = rest.partition("?")[0].rfind("@")
    return scheme, rest[: max(at, 0)], rest[at + 1 :]


def parse(text: str) -> Settings:
    """Of a connection string, or "host:port". SettingsError."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    scheme, login, place = parted(text)
    try:
        parts = urlsplit(f"{scheme}://{place}")
        host, port = parts.hostname, parts.port
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise SettingsError(f"the connection string makes no sense: {error}") from None
    if parts.scheme == "shardd+unix" and not host and parts.path.startswith("/"):
        found = Settings(unix_path=unquote(parts.path))
    elif parts.scheme in ("shardd", "shardd+tls") and host and parts.path in ("", "/"):
        found = Settings(host, port if port is not None else DEFAULT_PORT, tls=parts.scheme == "shardd+tls")
    else:
        raise SettingsError(
            "a connection string is shardd://[name:password@|token@]host[:port], the same with shardd+tls://, "
            "or shardd+unix://[name:password@|token@]/path"
        )
    name, colon, password = login.partition(":")
    if colon:
        found = replace(found, username=unquote(name), password=unquote(password))
    elif login:
        found = replace(found, token=unquote(login))
    for name, value in options.items():
        found = _with_option(found, name, value)
    return found


def _with_option(found: Settings, name: str, value: str) -> Settings:
    if name in _OF_TLS and found.tls:
        text: dict[str, Any] = {name: value}
        return replace(found, **text)
    try:
        if name == "deadline":
            return replace(found, deadline_s=_positive(float(value)))
        if name == "connect_timeout":
            return replace(found, connect_timeout_s=_positive(float(value)))
        if name == "request_timeout":
            return replace(found, request_timeout_s=_positive(float(value)))
        if name == "window":
            return replace(found, window=int(_positive(int(value))))
    except ValueError:
        raise SettingsError(f"{name}={value} in the connection string is no positive number") from None
    known = ["deadline", "connect_timeout", "request_timeout", "window", *(_OF_TLS if found.tls else ())]
    raise SettingsError(f"the connection string has no option {name}; there are {', '.join(known)}")


def _positive(value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def contexts_path(environment: Mapping[str, str]) -> Path:
    from pathlib import Path  # rare, and a fifth of the import

    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "shardd" / "contexts.toml"


def from_context(name: str | None, environment: Mapping[str, str]) -> Settings | None:
    """None: no name and no current context. SettingsError, also for a name that there is not."""
    path = contexts_path(environment)
    try:
        with path.open("rb") as file:
            import tomllib  # rare

            content = tomllib.load(file)
    except FileNotFoundError:
        content = {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    chosen = name or content.get("current")
    if chosen is None:
        return None
    contexts = content.get("contexts", {})
    if not isinstance(contexts, dict) or not isinstance(contexts.get(chosen), dict):
        raise SettingsError(f"there is no context {chosen!r} in {path}{_closest(str(chosen), contexts)}")
    return _of_context(str(chosen), contexts[chosen], path)


def _closest(name: str, known: Any) -> str:
    import difflib

    found = difflib.get_close_matches(name, [str(each) for each in known], 1) if isinstance(known, dict) else []
    return f"; is {found[0]!r} meant?" if found else ""


def _of_context(name: str, content: dict[str, Any], path: Path) -> Settings:
    unknown = sorted(set(content) - _KEYS)
    if unknown or not all(isinstance(value, str) for value in content.values()):
        raise SettingsError(f"context {name!r} in {path}: {unknown or 'a value that is no text'}")
    found = parse(content.get("url", "shardd://127.0.0.1"))
    if "token_file" in content:
        try:
            found = replace(found, token=(path.parent / content["token_file"]).expanduser().read_text().strip())
        except OSError as error:
            raise SettingsError(f"context {name!r} in {path}: the token cannot be read: {error.strerror}") from None
    if "token" in content:
        found = replace(found, token=content["token"])
    username, password = content.get("username", found.username), content.get("password", found.password)
    return replace(found, username=username, password=password)


def resolve(url: str | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """As the head of this module says. SHARDD_TOKEN, or SHARDD_USERNAME and SHARDD_PASSWORD, say who asks when nothing
    else does."""
    env = os.environ if environment is None else environment
    text = url or env.get("SHARDD_URL")
    found = parse(text) if text else from_context(env.get("SHARDD_CONTEXT") or None, env) or Settings()
    if not found.username and not found.token:
        username, password = env.get("SHARDD_USERNAME", ""), env.get("SHARDD_PASSWORD", "")
        found = replace(found, token=env.get("SHARDD_TOKEN", ""), username=username, password=password)
    return found
