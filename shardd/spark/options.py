"""Options of the source: names as in Spark's Kafka source where the meaning is the same. Parsed once, on the driver.

Every fault is an `OptionError` with one sentence that names the option and the way out."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from shardd.config.digits import number_of
from shardd.protocol.leases import LEASE_MAX_S
from shardd.spark import columns
from shardd.spark.decode import BATCH_BYTES, Verify
from shardd.spark.positions import (
    EARLIEST,
    LATEST,
    OptionError,
    Positions,
    TopicName,
    parse_assign,
    parse_names,
    parse_positions,
    parse_timestamp,
)
from shardd.spark.retry import Servers

_SIZE: Final = re.compile(r"(\d{1,20})\s*(b|k|kb|kib|m|mb|mib|g|gb|gib)?", re.IGNORECASE)
_UNITS: Final = {
    "": 0,
    "b": 0,
    "k": 10,
    "kb": 10,
    "kib": 10,
    "m": 20,
    "mb": 20,
    "mib": 20,
    "g": 30,
    "gb": 30,
    "gib": 30,
}
_DURATION: Final = re.compile(r"(\d{1,20})\s*(ms|s|m|h|d)?", re.IGNORECASE)
_DURATION_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION_MAX_DAYS: Final = 36_500  # sums with a time of day stay within 63 bits of microseconds
POLL_BYTES_MAX: Final = 64 << 20
GROUP_BYTES: Final = 16 << 20  # pieces up to so much share a task: starting one costs as much as reading this


class ReadMode(StrEnum):
    """Where rows come from."""

    AUTO = "auto"
    LIVE = "live"
    COLD = "cold"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What was asked for, with defaults filled in. Sizes in bytes, durations in milliseconds. `lease_s`: for how long
    files are to stay, 0: not. `foreign_archives`: partitions whose archive is of messages that the server does not
    have."""

    servers: Servers
    topics: tuple[TopicName, ...]
    pattern: str | None
    assigned: Mapping[TopicName, tuple[int, ...]]
    starting: Positions
    ending: Positions
    timestamp_strategy_latest: bool
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    watermark_delay_ms: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    min_bytes_per_partition: int
    include_headers: bool
    key_header: str | None
    read_mode: ReadMode
    path: str | None
    archive_path: str | None
    verify: Verify
    durable: bool
    batch_bytes: int
    poll_max_bytes: int
    poll_timeout_ms: int
    poll_pipelining: int
    retries: int
    retry_interval_ms: int
    progress_consumer: str | None
    lease_s: int
    columns: tuple[str, ...]
    foreign_archives: frozenset[tuple[TopicName, int]] = frozenset()

    @property
    def proves_tasks(self) -> bool:
        """Whether tasks ask the server for a record of their plan. Not those that poll nothing, nor those that read
        what a power failure may take back."""
        return self.durable and self.read_mode in (ReadMode.AUTO, ReadMode.LIVE)

    def archive_of(self, name: TopicName, partition: int) -> str | None:
        """Where to look for archived rows of a partition beside those of the server."""
        foreign = (name, partition) in self.foreign_archives
        return None if self.read_mode is ReadMode.LIVE or foreign else self.archive_path


NAMES: Final = (
    "servers", "stream", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "maxOffsetsPerTrigger", "maxBytesPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "watermarkDelay", "minPartitions", "maxRecordsPerPartition",
    "maxBytesPerPartition", "minBytesPerPartition", "includeHeaders", "keyHeader", "readMode", "path", "archivePath",
    "verifyChecksums", "isolation", "batchBytes", "poll.maxBytes", "poll.timeoutMs", "poll.pipelining",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "progressConsumer", "lease", "columns", "username",
    "password", "token", "credentialsFile",
)  # fmt: skip
_OWNED: Final = {
    "group": "the checkpoint decides the position, so there is no consumer group",
    "groupid": "the checkpoint decides the position, so there is no consumer group",
    "group.id": "the checkpoint decides the position, so there is no consumer group",
    "autocommit": "the checkpoint decides the position, so nothing is committed",
    "strategy": "the source polls by offset",
}
_USER: Final = "'username' and 'password', 'token', or 'credentialsFile'"
_TLS: Final = "an address in 'servers' with TLS, as shardd+tls://HOST:PORT?ca_file=FILE"
_OF_KAFKA: Final = {
    "bootstrap.servers": "'servers'",
    "sasl.": _USER,
    "security.protocol": f"{_USER}, and {_TLS}",
    "ssl.": _TLS,
    "max.poll.records": "'poll.maxBytes'",
    "fetch.max.bytes": "'poll.maxBytes'",
    "max.partition.fetch.bytes": "'poll.maxBytes'",
    "isolation.level": "'isolation'",
    "auto.offset.reset": "'startingOffsets'",
    "client.id": "nothing: connections have no name",
    "batch.size": "'batchBytes'",
    "max.in.flight.requests.per.connection": "'maxInFlight'",
    "delivery.timeout.ms": "'deliveryTimeoutMs'",
    "request.timeout.ms": "'poll.timeoutMs' of the source, 'requestTimeoutMs' of the sink",
    "enable.idempotence": "'semantics'",
    "transactional.id": "'semantics'",
    "acks": "nothing: the level of the topic decides",
    "compression.type": "nothing: the topic decides",
    "linger.ms": "nothing: batches end at 'batchBytes'",
    "group.id": "nothing: the checkpoint decides the position",
}  # what stands for an option kafka.NAME; a name that ends in a dot stands for a family


class RawOptions:
    """The options as given; remembers nothing, names each fault. `owned`: what cannot be set, and why."""

    def __init__(self, given: Mapping[str, str], names: Sequence[str], owned: Mapping[str, str]) -> None:
        self._given = {key.lower(): value for key, value in given.items()}
        by_lower = {name.lower(): name for name in names}
        for key in self._given:
            if key in owned:
                raise OptionError(f"option '{key}' cannot be set: {owned[key]}")
            if key.startswith("kafka."):
                raise OptionError(f"option '{key}' is one of Kafka, and this is shardd: {_instead(key)}")
            if key not in by_lower:
                close = difflib.get_close_matches(key, by_lower, 1, 0.6)
                hint = f"did you mean '{by_lower[close[0]]}'?" if close else f"known are {', '.join(names)}"
                raise OptionError(f"unknown option '{key}'; {hint}")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value if value is None or value.strip() else None

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(f"option '{name}' is '{value}', but must be true or false")
        return value == "true"

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = (self.text(name) or default).strip().lower()
        if value not in choices:
            raise OptionError(f"option '{name}' is '{value}', but must be one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: int | None = None, *, low: int = 1, high: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        found = number_of(value.strip())
        if found is None or not low <= found <= high:
            raise OptionError(f"option '{name}' is '{value}', but must be a whole number from {low} to {high}")
        return found

    def size(self, name: str, default: int | None, *, low: int = 1, high: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        match = _SIZE.fullmatch(value.strip())
        size = int(match[1]) << _UNITS[(match[2] or "").lower()] if match else 0
        if not low <= size <= high:
            raise OptionError(
                f"option '{name}' is '{value}', but must be a size from {low} to {high} bytes, as '2 MiB'"
            )
        return size

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise OptionError(f"option '{name}' is '{value}', but must be a duration such as '15m', '30s' or '500ms'")
        duration_ms = int(match[1]) * _DURATION_MS[(match[2] or "").lower()]
        if duration_ms > DURATION_MAX_DAYS * _DURATION_MS["d"]:
            raise OptionError(f"option '{name}' is '{value}', but may be {DURATION_MAX_DAYS}d at most")
        return duration_ms

    def present(self, *names: str) -> list[str]:
        return [name for name in names if self.text(name) is not None]


def _instead(key: str) -> str:
    """Of an option of Spark's Kafka source or sink."""
    name = key.removeprefix("kafka.")
    for known, ours in _OF_KAFKA.items():
        if name == known or (known.endswith(".") and name.startswith(known)):
            return f"use {ours}" if ours.startswith("'") or ours == _TLS else ours.replace("nothing", "leave it out")
    return "leave it out; docs/spark.md lists the options there are"


def parse(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """All options of one `load()`. `OptionError`."""
    raw = RawOptions(given, NAMES, _OWNED)
    topics, pattern, assigned = _subscription(raw)
    starting, ending = _positions(raw, streaming)
    verify = raw.choice("verifyChecksums", "true", ("true", "false", "report"))
    names = raw.text("columns")
    try:
        wanted = columns.check_names(name.strip() for name in names.split(",")) if names else ()
    except columns.UnknownColumnError as error:
        raise OptionError(f"option 'columns': {error}") from error
    include_headers = raw.flag("includeHeaders", False)
    read_mode = ReadMode(raw.choice("readMode", "auto", ("auto", "live", "cold", "archive")))
    if read_mode is ReadMode.COLD and not raw.present("path", "archivePath"):
        raise OptionError("readMode 'cold' needs the option 'path' (the server's data directory) or 'archivePath'")
    if read_mode is ReadMode.ARCHIVE and not raw.present("archivePath"):
        raise OptionError("readMode 'archive' needs the option 'archivePath'")
    return SourceOptions(
        servers=servers_of(raw, needed=read_mode is not ReadMode.ARCHIVE),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        timestamp_strategy_latest=raw.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
        == "latest",
        fail_on_data_loss=raw.flag("failOnDataLoss", True),
        max_offsets_per_trigger=raw.number("maxOffsetsPerTrigger"),
        max_bytes_per_trigger=raw.size("maxBytesPerTrigger", None),
        min_offsets_per_trigger=raw.number("minOffsetsPerTrigger"),
        max_trigger_delay_ms=raw.duration_ms("maxTriggerDelay", 15 * 60_000),
        watermark_delay_ms=raw.duration_ms("watermarkDelay", 0) if raw.present("watermarkDelay") else None,
        min_partitions=raw.number("minPartitions", high=100_000),
        max_records_per_partition=raw.number("maxRecordsPerPartition"),
        max_bytes_per_partition=raw.size("maxBytesPerPartition", 256 << 20) or 0,
        min_bytes_per_partition=raw.size("minBytesPerPartition", GROUP_BYTES, low=0) or 0,
        include_headers=include_headers,
        key_header=raw.text("keyHeader"),
        read_mode=read_mode,
        path=raw.text("path"),
        archive_path=raw.text("archivePath"),
        verify={"true": Verify.STOP, "false": Verify.NO, "report": Verify.REPORT}[verify],
        durable=raw.choice("isolation", "durable", ("durable", "visible")) == "durable",
        batch_bytes=raw.size("batchBytes", BATCH_BYTES, low=1024, high=256 << 20) or 0,
        poll_max_bytes=raw.size("poll.maxBytes", 1 << 20, low=1024, high=POLL_BYTES_MAX) or 0,
        poll_timeout_ms=raw.number("poll.timeoutMs", 30_000, high=3_600_000) or 0,
        poll_pipelining=raw.number("poll.pipelining", 2, high=8) or 0,
        retries=raw.number("fetchOffset.numRetries", 8, low=0, high=100) or 0,
        retry_interval_ms=raw.number("fetchOffset.retryIntervalMs", 250, high=60_000) or 0,
        progress_consumer=raw.text("progressConsumer"),
        lease_s=_lease_s(raw),
        columns=wanted or columns.default_names(include_headers=include_headers, report_checksums=verify == "report"),
    )


def _subscription(raw: RawOptions) -> tuple[tuple[TopicName, ...], str | None, Mapping[TopicName, tuple[int, ...]]]:
    ways = raw.present("subscribe", "subscribePattern", "assign")
    if len(ways) != 1:
        said = " and ".join(f"'{way}'" for way in ways) or "none"
        raise OptionError(f"exactly one of 'subscribe', 'subscribePattern' and 'assign' is needed, but given is {said}")
    stream = raw.text("stream")
    assign, pattern = raw.text("assign"), raw.text("subscribePattern")
    if assign is not None:
        assigned = parse_assign(assign, stream)
        return tuple(assigned), None, assigned
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option 'subscribePattern' is no regular expression: {error}") from error
        return (), pattern, {}
    return parse_names(raw.text("subscribe") or "", stream), None, {}


def _positions(raw: RawOptions, streaming: bool) -> tuple[Positions, Positions]:
    stream = raw.text("stream")
    sides = []
    for side, default in (("starting", LATEST if streaming else EARLIEST), ("ending", LATEST)):
        given = raw.present(f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
        if streaming and side == "ending" and given:
            raise OptionError(f"option '{given[0]}' has no meaning for a stream: it ends when it is stopped")
        if not given:
            sides.append(Positions(default))
            continue
        name = given[0]  # in this order, as Kafka's source has it
        text = raw.text(name) or ""
        if name.endswith("Timestamp") and "Offsets" not in name:
            sides.append(Positions(default, timestamp_us=parse_timestamp(name, text)))
        else:
            sides.append(
                parse_positions(name, text, stream, by_timestamp=name.endswith("ByTimestamp"), default=default)
            )
    return sides[0], sides[1]


def _lease_s(raw: RawOptions) -> int:
    lease_ms = raw.duration_ms("lease", 300_000)
    if lease_ms > LEASE_MAX_S * 1000:
        raise OptionError(f"option 'lease' is '{raw.text('lease')}', but may be {LEASE_MAX_S // 60}m at most; 0: none")
    return -(-lease_ms // 1000)


def servers_of(raw: RawOptions, *, needed: bool) -> Servers:
    """The user is from the options, a file with two lines (user, password) or one (token), or SHARDD_USERNAME,
    SHARDD_PASSWORD and SHARDD_TOKEN of the environment. `needed`: `OptionError` without one."""
    addresses = tuple(each.strip() for each in (raw.text("servers") or "127.0.0.1:8090").split(","))
    ways = raw.present("token", "username", "credentialsFile")
    if len(ways) > 1:
        raise OptionError(f"options '{ways[0]}' and '{ways[1]}' contradict each other")
    file = raw.text("credentialsFile")
    if file is not None:
        try:
            lines = Path(file).read_text().split("\n")
        except OSError as error:
            raise OptionError(f"option 'credentialsFile': {error}") from error
        return Servers(addresses, *lines[:2]) if len(lines) > 1 and lines[1] else Servers(addresses, token=lines[0])
    token = raw.text("token") or ("" if raw.present("username") else os.environ.get("SHARDD_TOKEN", ""))
    if token:
        return Servers(addresses, token=token)
    username = raw.text("username") or os.environ.get("SHARDD_USERNAME", "")
    password = raw.text("password") or os.environ.get("SHARDD_PASSWORD", "")
    if not username and needed:
        raise OptionError(
            "no credentials: give 'username' and 'password', 'token' or 'credentialsFile', or set"
            " SHARDD_USERNAME and SHARDD_PASSWORD"
        )
    return Servers(addresses, username, password)
