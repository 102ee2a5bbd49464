"""Named shapes of load: a kind with other defaults, and for the unfriendly ones what goes on beside it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from shardd.benchmark.kinds import BY_NAME, Kind
from shardd.benchmark.options import Span, parse_bytes


class Profile(NamedTuple):
    """`words`: defaults of options of its kind. `globals_`: of those before it. `disturbance`: of disturb.py."""

    name: str
    kind: Kind
    about: str
    words: dict[str, Any]
    globals_: dict[str, Any]
    disturbance: str = ""
    settings: tuple[str, ...] = ()


def _rate(text: str) -> dict[str, Any]:
    return {"rate_limit_bytes": parse_bytes(text, "rate"), "rate_limit_text": text}


def _batches(messages: int, count: int) -> dict[str, Any]:
    return {"batch": Span(messages, messages), "batches": count}


_PAIRS: Final = BY_NAME["pinned-producer-and-consumer"]
_GROUPS: Final = BY_NAME["balanced-producer-and-consumer-group"]
_SPREAD: Final = BY_NAME["balanced-producer"]
PROFILES: Final = (
    Profile(
        "reference",
        _PAIRS,
        "20 producers and 20 consumers with 250 x 1000 B at 400 MB/s: the public shape of Apache Iggy.",
        {"producers": 20, "consumers": 20},
        _batches(250, 1000) | _rate("400MB"),
    ),
    Profile(
        "tail-polls",
        _PAIRS,
        "Consumers read at the end of the log while little is written: latency from the message to its reader.",
        {"producers": 4, "consumers": 4},
        _batches(10, 1000) | _rate("10MB") | {"open_loop": True},
    ),
    Profile(
        "catch-up-polls",
        BY_NAME["pinned-consumer"],
        "Consumers read everything from the beginning, in large polls.",
        {"consumers": 4},
        _batches(1000, 500),
    ),
    Profile(
        "mixed-sizes",
        _PAIRS,
        "Payloads of 10 to 20,000 bytes in batches of 1 to 100.",
        {"producers": 4, "consumers": 4},
        {"batch": Span(1, 100), "message_size": Span(10, 20_000), "batches": 500},
    ),
    Profile(
        "many-partitions",
        _SPREAD,
        "64 producers write to 1,000 partitions at random.",
        {"producers": 64, "partitions": 1000},
        _batches(10, 500) | {"partitioning": "random"},
    ),
    Profile(
        "many-connections",
        _SPREAD,
        "1,000 producers write to 24 partitions.",
        {"producers": 1000, "partitions": 24},
        _batches(10, 50),
    ),
    Profile(
        "hot-partition",
        _SPREAD,
        "80% of all requests go to one of 24 partitions.",
        {"producers": 8, "partitions": 24},
        _batches(10, 2000) | {"partitioning": "random", "hot_percent": 80},
    ),
    Profile(
        "slow-consumer",
        _PAIRS,
        "Beside producers and consumers, eight others ask for much and hardly read it.",
        {"producers": 4, "consumers": 4},
        _batches(100, 1000),
        "slow-consumer",
    ),
    Profile(
        "retention",
        BY_NAME["pinned-producer"],
        "Segments of topics that are limited to 16 MiB are deleted while they are written.",
        {"producers": 4, "max_topic_size": "16MiB"},
        _batches(100, 2000) | _rate("200MB"),
        settings=(
            "SHARDD_SYSTEM_SEGMENT_SIZE=4 MiB",
            "SHARDD_DATA_MAINTENANCE_MESSAGES_INTERVAL=100 ms",
        ),
    ),
    Profile(
        "rebalance",
        _GROUPS,
        "A member joins the group and leaves it again, five times a second.",
        {"producers": 4, "consumers": 4, "partitions": 24},
        _batches(100, 2000),
        "rebalance",
    ),
    Profile(
        "kill",
        _PAIRS,
        "Workers of the server are killed in turn; clients come back and send again (with --own-server).",
        {"producers": 4, "consumers": 4},
        _batches(100, 125) | _rate("20MB") | {"open_loop": True},
        "kill",
    ),
)
