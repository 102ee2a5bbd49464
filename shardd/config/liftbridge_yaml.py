"""Settings of a Liftbridge server, as its YAML file and its command line have them, as settings of this one.

Names are dotted or nested. What has no counterpart here is named in one warning each; what would make the server less
safe than it was asked to be, and what Liftbridge does not know, is refused.
"""

from __future__ import annotations

import difflib
import socket
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from shardd.config.digits import number_of
from shardd.config.liftbridge import MESSAGE_BYTES_MAX
from shardd.config.units import parse_bool, parse_duration_us

FILE_BYTES_MAX: Final = 1 << 20
PORT: Final = 9292
NATS_DEFAULT: Final = "nats://localhost:4222"
_SEGMENT_BYTES_MAX: Final = 1 << 30
_WILDCARDS: Final = ("", "0.0.0.0", "::")
_LEVELS: Final = {"panic": "error", "fatal": "error", "warning": "warn"}
_DEPTH_MAX: Final = 16
_SETTINGS_MAX: Final = 1_000  # of a file; aliases of YAML multiply

# what has an effect on replicas, on one server alone, or on what this server does in another way
WITHOUT_EFFECT: Final = {
    **dict.fromkeys(("logging.recovery", "logging.raft", "logging.nats"), "the level is one for all"),
    **dict.fromkeys(("batch.max.messages", "batch.max.time"), "batches are what is there"),
    "metadata.cache.max.age": "metadata are always fresh",
    "nats.embedded.config": "the built-in NATS server has settings of its own: liftbridge.nats_server",
    "streams.cleaner.interval": "see system.retention",
    "streams.compact.enabled": "there is no compaction by key",
    "streams.compact.max.goroutines": "there is no compaction by key",
    "streams.concurrency.control": "it is a setting of each stream, as it was",
    "clustering.min.insync.replicas": "there is one server",
    **dict.fromkeys(
        (
            "clustering.replica.max.lag.time",
            "clustering.replica.max.leader.timeout",
            "clustering.replica.max.idle.wait",
            "clustering.replica.fetch.timeout",
            "clustering.raft.snapshot.retain",
            "clustering.raft.snapshot.threshold",
            "clustering.raft.cache.size",
            "clustering.raft.bootstrap.peers",
            "clustering.raft.max.quorum.size",
            "clustering.raft.logging",
            "cursors.stream.replication.factor",
        ),
        "there is one server",
    ),
    "cursors.stream.auto.pause.time": "cursors are never paused",
    **dict.fromkeys(
        ("activity.stream.publish.timeout", "activity.stream.publish.ack.policy"), "events are always stored"
    ),
    **dict.fromkeys(("telemetry.enabled", "telemetry.interval.seconds"), "nothing is reported to anybody"),
}
SILENT: Final = frozenset({"clustering.raft.bootstrap.seed"})  # what a server by itself always is


class LiftbridgeConfigError(Exception):
    """All problems of one configuration, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Translated(msgspec.Struct):
    """`values`: key path of this server -> value. `secrets`: text of files that settings name, by key path."""

    values: dict[str, object] = {}
    warnings: list[str] = []
    secrets: dict[str, str] = {}


def read_yaml(path: Path) -> dict[str, object]:
    """Name -> value, names dotted and lower case as Liftbridge takes them. LiftbridgeConfigError."""
    import yaml

    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise LiftbridgeConfigError([f"{path}: it has more than {FILE_BYTES_MAX} bytes"])
        tree = yaml.safe_load(content)
    except OSError as error:
        raise LiftbridgeConfigError([f"{path}: {error.strerror}"]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise LiftbridgeConfigError([f"{path}: {error}"]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise LiftbridgeConfigError([f"{path}: it holds no settings"])
    return dict(islice(_leaves(tree, "", 0, str(path)), _SETTINGS_MAX))


def _leaves(tree: Mapping[Any, object], prefix: str, depth: int, path: str) -> Iterator[tuple[str, object]]:
    if depth > _DEPTH_MAX:
        raise LiftbridgeConfigError([f"{path}: it is nested too deep"])
    for name, value in tree.items():
        dotted = f"{prefix}{str(name).lower()}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{dotted}.", depth + 1, path)
        else:
            yield dotted, value


def translate(given: Mapping[str, object], resolve: Callable[[str], str] = socket.gethostbyname) -> Translated:
    """`given`: by the names of Liftbridge. LiftbridgeConfigError."""
    return _Translation(given, resolve).run()


class _Translation:
    def __init__(self, given: Mapping[str, object], resolve: Callable[[str], str]) -> None:
        self._given, self._resolve = given, resolve
        self._result = Translated()
        self._problems: list[str] = []
        self._taken: set[str] = set()

    def run(self) -> Translated:
        self._result.values["liftbridge.enabled"] = True
        for name, (path, read) in _SIMPLE.items():
            self._take(name, path, read)
        for part in (self._addresses, self._tls, self._nats):
            part()
        for name in ("streams.encryption", "tls.client.authz.enabled"):
            if self._value(name, parse_bool, False):
                self._problems.append(f"{name}: {_REFUSED[name]}")
        for name in ("tls.client.authz.model", "tls.client.authz.policy"):
            self._value(name, str, "")
        self._rest()
        if self._problems:
            raise LiftbridgeConfigError(self._problems)
        return self._result

    # ---- single settings ----

    def _value(self, name: str, read: Callable[[Any], Any], default: Any) -> Any:
        if name not in self._given:
            return default
        self._taken.add(name)
        try:
            return read(self._given[name])
        except (ValueError, TypeError) as error:
            self._problems.append(f"{name}: {error}")
            return default

    def _take(self, name: str, path: str, read: Callable[[object], object]) -> None:
        value = self._value(name, read, None)
        most = _MOST.get(name)
        if most is not None and isinstance(value, int) and value > most:
            self._result.warnings.append(f"{name}: {value} is more than there can be, {most} is taken")
            value = most
        if value is not None:
            self._result.values[path] = value

    def _rest(self) -> None:
        for name in self._given:
            if name in self._taken or name in SILENT:
                continue
            if name in WITHOUT_EFFECT:
                self._result.warnings.append(f"{name} has no effect here: {WITHOUT_EFFECT[name]}")
                continue
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            self._problems.append(f"{name}: Liftbridge has no such setting{hint}")

    # ---- settings together ----

    def _addresses(self) -> None:
        """`listen` is bound; what clients are told is `host` and `port`, else the same. Without `listen` `host` is
        bound, else the loopback address."""
        listen = self._value("listen", _host_and_port, None)
        host = self._value("host", _text, None)
        port = self._value("port", _port, None)
        bound_host, bound_port = listen or (host or "127.0.0.1", port or PORT)
        told_host, told_port = host or bound_host, port or bound_port
        bound = self._bound(bound_host, bound_port)
        if told_host in _WILDCARDS:
            told_host = socket.gethostname()
            self._result.warnings.append(f"host is not set: clients are told to connect to {told_host}")
        self._result.values["liftbridge.address"] = bound
        told = f"{told_host}:{told_port}"
        self._result.values["liftbridge.advertised_address"] = "" if told == bound else told

    def _bound(self, host: str, port: int) -> str:
        if host in _WILDCARDS:
            return f"0.0.0.0:{port}"
        if ":" in host:
            return f"[{host}]:{port}"
        try:
            return f"{self._resolve(host)}:{port}"
        except OSError as error:
            self._problems.append(f"listen: {host} has no address: {error.strerror}")
            return f"127.0.0.1:{port}"

    def _tls(self) -> None:
        files = {"cert": self._value("tls.cert", _path, ""), "key": self._value("tls.key", _path, "")}
        if any(files.values()):
            missing = [name for name, path in files.items() if not path]
            if missing:
                self._problems.append(f"tls.{missing[0]}: a certificate and its key are needed, both")
            self._result.values["liftbridge.tls.enabled"] = True
            self._result.values |= {f"liftbridge.tls.{name}_file": path for name, path in files.items()}
        authority = self._value("tls.client.auth.ca", _path, "")
        if self._value("tls.client.auth.enabled", parse_bool, False):
            if not authority or not any(files.values()):
                self._problems.append("tls.client.auth.enabled: needs tls.client.auth.ca, tls.cert and tls.key")
            self._result.values["liftbridge.tls.client_ca_file"] = authority

    def _nats(self) -> None:
        servers = self._value("nats.servers", _servers, None)
        login, password = self._value("nats.user", _text, ""), self._value("nats.password", _text, "")
        names = {"nats.tls.cert": "tls_cert_file", "nats.tls.key": "tls_key_file", "nats.tls.ca": "tls_ca_file"}
        files = {own: self._value(name, _path, "") for name, own in names.items()}
        if self._value("nats.embedded", parse_bool, False):
            self._result.values["liftbridge.nats_server.enabled"] = True
            if servers is not None:
                self._result.warnings.append("nats.servers has no effect here: the built-in NATS server is on")
            return
        self._result.values["liftbridge.nats.servers"] = [NATS_DEFAULT] if servers is None else servers
        if login:
            self._result.values["liftbridge.nats.login_name"] = login
            self._result.secrets["liftbridge.nats.password_file"] = password
        self._result.values |= {f"liftbridge.nats.{own}": path for own, path in files.items() if path}


# ---- values ----


def _text(value: object) -> str:
    if isinstance(value, dict | list | bool) or value is None:
        raise ValueError(f"{value!r} is no text")
    return str(value)


def _path(value: object) -> str:
    text = _text(value)
    return str(Path(text).absolute()) if text else ""


def _port(value: object) -> int:
    text = _text(value)
    port = number_of(text)
    if port is None or port >= 1 << 16:
        raise ValueError(f"{text!r} is no port")
    return port


def _host_and_port(value: object) -> tuple[str, int]:
    host, separator, port = _text(value).rpartition(":")
    if not separator:
        raise ValueError(f"{value!r} is no host:port")
    return host.removeprefix("[").removesuffix("]"), _port(port)


def _servers(value: object) -> list[str]:
    entries = value if isinstance(value, list) else _text(value).split(",")
    servers = [_text(entry).strip() for entry in entries]
    return [server if "://" in server else f"nats://{server}" for server in servers if server]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no number")
    if isinstance(value, int):
        return value
    found = number_of(value.strip().lstrip("+-"))
    if found is None:
        raise ValueError(f"{value!r} is no number")
    return -found if value.strip().startswith("-") else found


def _limit(value: object) -> int:
    """Negative ones are no limit."""
    return max(_whole(value), 0)


def _duration(value: object) -> str:
    """A Go duration as text, or a number of nanoseconds; shorter ones than a millisecond become one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no duration")
    text = str(value)
    if isinstance(value, int) or number_of(text.removeprefix("-")) is not None:
        duration_us = max(_whole(value), 0) // 1_000
        positive = _whole(value) > 0
    else:
        duration_us = 0 if text.startswith("-") else parse_duration_us(_without_nanoseconds(text))
        positive = duration_us > 0
    return f"{max(duration_us // 1_000, int(positive))} ms"


def _without_nanoseconds(text: str) -> str:
    """Go writes "1h0m0.5s" and "500ns"; nobody sets the latter."""
    if text.endswith("ns") and (found := number_of(text[:-2])) is not None:
        return f"{found // 1_000} us"
    return text


def _level(value: object) -> str:
    text = _text(value).lower()
    return _LEVELS.get(text, text)


_SIMPLE: Final[dict[str, tuple[str, Callable[[object], object]]]] = {
    "data.dir": ("system.path", _path),
    "logging.level": ("system.logging.level", _level),
    "clustering.server.id": ("liftbridge.server_id", _text),
    "clustering.namespace": ("liftbridge.namespace", _text),
    "clustering.replication.max.bytes": ("liftbridge.max_message_size", _whole),
    "activity.stream.enabled": ("liftbridge.activity", parse_bool),
    "cursors.stream.partitions": ("liftbridge.cursors_partitions", _whole),
    "groups.consumer.timeout": ("liftbridge.group_consumer_timeout", _duration),
    "groups.coordinator.timeout": ("liftbridge.group_coordinator_timeout", _duration),
    "streams.retention.max.bytes": ("liftbridge.streams.retention_size", _limit),
    "streams.retention.max.messages": ("liftbridge.streams.retention_messages", _limit),
    "streams.retention.max.age": ("liftbridge.streams.retention_age", _duration),
    "streams.segment.max.bytes": ("liftbridge.streams.segment_size", _whole),
    "streams.segment.max.age": ("liftbridge.streams.segment_age", _duration),
    "streams.auto.pause.time": ("liftbridge.streams.auto_pause_time", _duration),
    "streams.auto.pause.disable.if.subscribers": ("liftbridge.streams.auto_pause_disable_if_subscribers", parse_bool),
}
_MOST: Final = {
    "clustering.replication.max.bytes": MESSAGE_BYTES_MAX,
    "cursors.stream.partitions": 64,
    "streams.segment.max.bytes": _SEGMENT_BYTES_MAX,
}
_REFUSED: Final = {
    "streams.encryption": "this server does not encrypt what it stores; leave it out to store plain values",
    "tls.client.authz.enabled": "rules of Liftbridge are not read; give users rights instead (shardd user) and leave "
    "it out",
}
_TOGETHER: Final = (
    "listen", "host", "port", "tls.cert", "tls.key", "tls.client.auth.enabled", "tls.client.auth.ca", "nats.servers",
    "nats.user", "nats.password", "nats.tls.cert", "nats.tls.key", "nats.tls.ca", "nats.embedded",
    "tls.client.authz.model", "tls.client.authz.policy",
)  # fmt: skip
KNOWN: Final = frozenset({*_SIMPLE, *_TOGETHER, *_REFUSED, *WITHOUT_EFFECT, *SILENT})
