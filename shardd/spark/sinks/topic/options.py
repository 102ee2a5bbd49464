"""Options of the sink format("shardd"). Every fault is an `OptionError` with one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from shardd.client import Credentials
from shardd.spark.options import RawOptions, credentials_of, servers_of
from shardd.spark.positions import OptionError, TopicName, parse_names

BATCH_BYTES_MAX: Final = 16 << 20
ONCE_BYTES_MAX: Final = 2 << 20  # the server takes no larger batch of an idempotent producer
JOURNAL_STREAM: Final = "shardd-spark"
NO_JOURNAL: Final = "none"
SOURCE_ORDER: Final = "source"
NAMES: Final = (
    "servers", "stream", "topic", "createTopic", "semantics", "partitioning", "order", "keyHeader", "batchBytes",
    "maxInFlight", "deliveryTimeoutMs", "requestTimeoutMs", "appId", "appVersion", "journal", "username", "password",
    "token", "credentialsFile", "checkpointLocation",
)  # fmt: skip
_OWNED: Final = {
    "subscribe": "it is an option of the source; the sink writes to 'topic'",
}


class Semantics(StrEnum):
    """What becomes of a row whose task is repeated."""

    AT_LEAST_ONCE = "at-least-once"
    STABLE_IDS = "stable-ids"
    IDEMPOTENT = "idempotent"

    @property
    def needs_order(self) -> bool:
        """A repeated task must have its rows in the same order."""
        return self is not Semantics.AT_LEAST_ONCE


class Partitioning(StrEnum):
    """Which partition a row goes to. `AUTO`: by the columns that there are."""

    AUTO = "auto"
    BALANCED = "balanced"
    KEY = "key"
    COLUMN = "column"


class SinkOptions(msgspec.Struct, frozen=True):
    """What was asked for, with defaults filled in. `order`: () not given, ("source",) the rows of a task come as a
    source gives them, else columns by which they ascend. `journal`: a stream; None: none."""

    servers: tuple[str, ...]
    topic: TopicName
    create_partitions: int | None
    semantics: Semantics
    partitioning: Partitioning
    order: tuple[str, ...]
    key_header: str
    batch_bytes: int
    in_flight: int
    delivery_timeout_s: float
    request_timeout_s: float
    application: str | None
    version: int
    journal: str | None
    credentials: Credentials

    def __repr__(self) -> str:
        return f"SinkOptions({self.topic}, {self.semantics})"


def parse(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """All options of one `save()` or `start()`. `OptionError`."""
    raw = RawOptions(given, NAMES, _OWNED)
    if streaming and raw.present("appId", "appVersion"):
        raise OptionError("options 'appId' and 'appVersion' are for batch writes; a stream is known by its checkpoint")
    application = raw.text("appId")
    if application is None and raw.present("appVersion"):
        raise OptionError("option 'appVersion' needs 'appId'")
    semantics = Semantics(raw.choice("semantics", Semantics.AT_LEAST_ONCE, tuple(Semantics)))
    if semantics.needs_order and not streaming and application is None:
        raise OptionError(f"semantics '{semantics}' of a batch write needs the option 'appId': ids are made from it")
    journal = raw.text("journal") or JOURNAL_STREAM
    once = semantics is Semantics.IDEMPOTENT
    if once and journal == NO_JOURNAL:
        raise OptionError("semantics 'idempotent' needs the journal: it says which producers the tasks have")
    batch_bytes_max = ONCE_BYTES_MAX if once else BATCH_BYTES_MAX
    return SinkOptions(
        servers=servers_of(raw),
        topic=_topic(raw),
        create_partitions=raw.number("createTopic", high=1000),
        semantics=semantics,
        partitioning=Partitioning(raw.choice("partitioning", Partitioning.AUTO, tuple(Partitioning))),
        order=tuple(each.strip() for each in (raw.text("order") or "").split(",") if each.strip()),
        key_header=raw.text("keyHeader") or "",
        batch_bytes=raw.size("batchBytes", 1 << 20, low=1024, high=batch_bytes_max) or 0,
        in_flight=raw.number("maxInFlight", 4, high=32) or 0,
        delivery_timeout_s=(raw.number("deliveryTimeoutMs", 120_000, high=86_400_000) or 0) / 1000,
        request_timeout_s=(raw.number("requestTimeoutMs", 30_000, high=3_600_000) or 0) / 1000,
        application=application,
        version=raw.number("appVersion", 0, low=0) or 0,
        journal=None if journal == NO_JOURNAL else journal,
        credentials=credentials_of(raw, needed=True),
    )


def _topic(raw: RawOptions) -> TopicName:
    text = raw.text("topic")
    if text is None:
        raise OptionError("the sink shardd needs the option 'topic', as 'stream/topic'")
    names = parse_names(text, raw.text("stream"))
    if len(names) != 1:
        raise OptionError(f"option 'topic' names {len(names)} topics, but rows go to one")
    return names[0]
