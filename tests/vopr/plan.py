"""What a run does: kinds of topics with what is done to them, and faults with their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.vopr.judge import SEGMENT_BYTES

DELETIONS_MAX: Final = 3  # segments of one request
WORK: Final = {"send": 60, "look": 14, "offset": 8, "settings": 4, "purge": 1.0, "recreate": 0.7, "delete": 2.0}
CALMER: Final = WORK | {"purge": 0.3, "recreate": 0.2, "delete": 0}
LEVELS: Final = ("written", "durable")
CODECS: Final = ("none", "zstd:1", "lz4")


@dataclass(frozen=True)
class Kind:
    """`settings`: from the start on; `changes`: what each may become."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=lambda: WORK)
    expiry_s: float = 0.0
    topic_bytes: int = 0
    partition_bytes: int = 0
    once: bool = False
    identified: bool = False
    pause_s: float = 0.02
    segment_bytes: int = SEGMENT_BYTES


COUNT: Final = "200"
KINDS: Final = (
    Kind("kept", changes={"compression": CODECS, "ack": LEVELS}),
    Kind("packed", {"compression": "zstd:1"}, weights=CALMER | {"settings": 0}, pause_s=0.1),
    Kind("once", {"ack": "durable"}, {"ack": LEVELS, "compression": CODECS}, WORK | {"delete": 0.5}, once=True),
    Kind(
        "identified", {"message_deduplication": "on"}, {"ack": LEVELS, "compression": CODECS}, CALMER, identified=True
    ),
    Kind(
        "count", {"partition_messages_max": COUNT}, {"partition_messages_max": (COUNT, "0"), "retention": ("on", "off")}
    ),
    Kind("expiry", {}, {"compression": CODECS, "retention": ("on", "off")}, expiry_s=15.0),
    Kind("size", {}, {"compression": CODECS, "retention": ("on", "off")}, topic_bytes=1 << 20),
    Kind(
        "partition-size",
        {"partition_size_max": str(8 * SEGMENT_BYTES)},
        {"compression": CODECS, "retention": ("on", "off")},
        partition_bytes=8 * SEGMENT_BYTES,
    ),
    Kind("required", {"archive": "required", "partition_messages_max": COUNT}, {"compression": CODECS}, CALMER),
    Kind(
        "archive-changes",
        {"partition_messages_max": COUNT},
        {"archive": ("none", "required")},
        WORK | {"settings": 1.5, "purge": 0.2, "recreate": 0.2, "delete": 0.5},
    ),
    Kind("overtaken", {}, {}, {"send": 50, "look": 10, "overtake": 2, "delete": 1}),
)
# how often, against the others
FAULTS: Final = {
    "kill": 6.0,
    "stop": 4.0,
    "restart": 1.0,
    "disk full": 2.0,
    "disk fails": 2.0,
    "few descriptors": 1.5,
    "clock": 1.5,
}
PAUSE_S: Final = (0.2, 1.5)  # between two faults
SETTINGS: Final = {
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "128 MiB",
    "IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED": "true",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
}
