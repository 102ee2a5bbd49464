"""Maps the settings of a CreateStreamRequest to settings of a topic (docs/adr/0092-liftbridge-metadata.md). A size or a
time out of the bounds of a topic becomes the nearest permitted value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from shardd.config.liftbridge import LiftbridgeStreams
from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.topic_setting_table import (
    PARTITION_MESSAGES_MAX,
    PARTITION_SIZE_MAX,
    SEGMENT_AGE_MAX,
    SEGMENT_SIZE,
    Count,
    Setting,
)

Asked = Mapping[str, int | bool]
_US_PER_MS: Final = 1000
_TIMES: Final = ("retentionMaxAge", "cleanerInterval", "segmentMaxAge", "autoPauseTime")
_NUMBERS: Final = frozenset(
    {*_TIMES, "retentionMaxBytes", "retentionMaxMessages", "segmentMaxBytes", "compactMaxGoroutines", "minIsr"}
)
_FLAGS: Final = frozenset(
    {"compactEnabled", "autoPauseDisableIfSubscribers", "optimisticConcurrencyControl", "encryption"}
)
_NOT_HERE: Final = {
    "compactEnabled": "compactEnabled: this server does not compact by key yet",
    "encryption": "encryption: this server does not encrypt what it stores",
}


def check_asked(asked: Asked) -> None:
    """`ShardError` 3 for what is no setting, 2 with a sentence for what this server does not do."""
    for name, value in asked.items():
        known = (isinstance(value, bool) and name in _FLAGS) or (type(value) is int and name in _NUMBERS)
        if not known or not -(1 << 63) <= value < 1 << 63:
            raise ShardError(Status.INVALID_COMMAND, f"{name!r} is no setting of a stream, or has no such value")
        if value is True and name in _NOT_HERE:
            raise ShardError(Status.INVALID_CONFIGURATION, _NOT_HERE[name])


def message_expiry_us(asked: Asked, defaults: LiftbridgeStreams) -> int:
    """As topics have it: without a limit messages never expire."""
    age_ms = asked.get("retentionMaxAge", defaults.retention_age_ms)
    return min(age_ms * _US_PER_MS, limits.UNLIMITED) if age_ms > 0 else limits.UNLIMITED


def topic_settings_of(asked: Asked, defaults: LiftbridgeStreams) -> tuple[tuple[str, str], ...]:
    """Canonical ones; what is 0 or less is left out: no limit, and segments as the server has them."""
    wanted = (
        (PARTITION_MESSAGES_MAX, asked.get("retentionMaxMessages", defaults.retention_messages)),
        (PARTITION_SIZE_MAX, asked.get("retentionMaxBytes", defaults.retention_size_bytes)),
        (SEGMENT_SIZE, asked.get("segmentMaxBytes", defaults.segment_size_bytes)),
        (SEGMENT_AGE_MAX, asked.get("segmentMaxAge", defaults.segment_age_ms) * _US_PER_MS),
    )
    return tuple((setting.key, _stored(setting, value)) for setting, value in wanted if value > 0)


def _stored(setting: Setting[int], value: int) -> str:
    takes = cast(Count, setting.type)
    return takes.store(min(max(value, takes.least), takes.most))
