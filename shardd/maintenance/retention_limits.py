"""What a topic's settings mean for each of its partitions (`partition_limits` in native/src/log/partition.h)."""

from __future__ import annotations

from typing import Final

from shardd.config.schema import NEVER, Settings
from shardd.engine.partition_limits import PartitionLimits, SendLimits
from shardd.metadata.state import Topic
from shardd.protocol import limits
from shardd.protocol.topic_setting_table import (
    ARCHIVE,
    DISCARD,
    HELD_AS_EXPIRY,
    MESSAGE_SIZE_MAX,
    PARTITION_MESSAGES_MAX,
    PARTITION_SIZE_MAX,
    RETENTION,
    SEGMENT_AGE_MAX,
    SEGMENT_SIZE,
    SIZE_HELD_MAX,
)

HELD_WITHOUT_EXPIRY_US: Final = 24 * 3600 * 1_000_000
"""For how long stored offsets hold messages back in a topic that has limits, but no expiry."""


class RetentionLimits:
    """The rules, with the settings of the server. `enabled` is false: nothing is ever limited."""

    def __init__(self, settings: Settings) -> None:
        self._system = settings.system
        self.enabled = settings.data_maintenance.cleaner_enabled

    def is_on(self, topic: Topic) -> bool:
        return self.enabled and RETENTION.of(topic.settings, self._system) == "on"

    def expiry_us(self, topic: Topic) -> int:
        """0: messages never expire."""
        expiry = topic.message_expiry_us
        if expiry == limits.SERVER_DEFAULT:  # UPDATE_TOPIC stores it as it was sent
            expiry = self._system.topic_message_expiry_us
        return 0 if expiry == NEVER else expiry

    def size_bytes(self, topic: Topic) -> int:
        """0: unlimited."""
        size = topic.max_topic_size_bytes
        if size == limits.SERVER_DEFAULT:
            size = self._system.topic_max_size_bytes
        return 0 if size == NEVER else size

    def messages_max(self, topic: Topic) -> int:
        """Of each partition. 0: unlimited."""
        return PARTITION_MESSAGES_MAX.of(topic.settings, self._system)

    def partition_bytes(self, topic: Topic) -> int:
        """Of each partition. 0: unlimited."""
        return PARTITION_SIZE_MAX.of(topic.settings, self._system)

    def segment_age_us(self, topic: Topic) -> int:
        """0: segments are sealed when they are full, whatever their age."""
        return SEGMENT_AGE_MAX.of(topic.settings, self._system)

    def refuses(self, topic: Topic) -> bool:
        """Whether its size, and messages and size of its partitions, end sends, and remove nothing."""
        return DISCARD.of(topic.settings, self._system) == "refuse"

    def archives(self, topic: Topic) -> bool:
        """Whether its segments are archived before they are deleted."""
        return ARCHIVE.of(topic.settings, self._system) != "none"

    def size_held_us(self, topic: Topic) -> int:
        """Age up to which stored offsets hold back what a size or a count wants to go. 0: they never do."""
        held_us = SIZE_HELD_MAX.of(topic.settings, self._system)
        if held_us == HELD_AS_EXPIRY:
            held_us = self.expiry_us(topic) + self._held_us(topic)
        return min(held_us, NEVER)

    def keeps_for_offsets(self, topic: Topic) -> bool:
        """Whether it has sizes or counts that stored offsets overrule, since nobody has said otherwise."""
        limited = self.size_bytes(topic) or self.messages_max(topic) or self.partition_bytes(topic)
        return bool(limited) and not self.refuses(topic) and SIZE_HELD_MAX.key not in topic.settings

    def _held_us(self, topic: Topic) -> int:
        return self._system.retention.held_max_ms * 1000 or self.expiry_us(topic) or HELD_WITHOUT_EXPIRY_US

    def has_any(self, topic: Topic) -> bool:
        """Whether something would go if retention were on."""
        if self.expiry_us(topic):
            return True
        limited = self.size_bytes(topic) or self.messages_max(topic) or self.partition_bytes(topic)
        return bool(limited) and not self.refuses(topic)

    def of_sends(self, topic: Topic) -> SendLimits:
        """Refusing removes nothing: it depends neither on `retention` nor on the cleaner."""
        message_bytes = MESSAGE_SIZE_MAX.of(topic.settings, self._system)
        if not self.refuses(topic):
            return SendLimits(message_bytes)
        return SendLimits(message_bytes, self.messages_max(topic), self.size_bytes(topic), self.partition_bytes(topic))

    def of(self, topic: Topic) -> PartitionLimits:
        """Of each of its partitions. When segments are sealed depends neither on `retention` nor on the cleaner."""
        own_size = SEGMENT_SIZE.of(topic.settings, self._system)
        sealed = PartitionLimits(
            segment_bytes=0 if own_size == self._system.segment_size_bytes else own_size,
            segment_age_us=self.segment_age_us(topic),
        )
        if not self.is_on(topic):
            return sealed
        drops = not self.refuses(topic)
        return sealed._replace(
            expiry_us=self.expiry_us(topic),
            held_us=min(self._held_us(topic), NEVER),
            size_held_us=self.size_held_us(topic),
            messages_max=self.messages_max(topic) if drops else 0,
            bytes_max=self.partition_bytes(topic) if drops else 0,
        )
