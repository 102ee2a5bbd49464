"""What a topic's settings mean for each of its partitions (`partition_limits` in native/src/log/partition.h)."""

from __future__ import annotations

from typing import Final

from shardd.config.schema import NEVER, Settings
from shardd.engine.partition_limits import PartitionLimits, SendLimits
from shardd.metadata.state import Topic
from shardd.protocol import limits
from shardd.protocol.topic_setting_table import ARCHIVE, DISCARD, MESSAGE_SIZE_MAX, PARTITION_MESSAGES_MAX, RETENTION

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

    def refuses(self, topic: Topic) -> bool:
        """Whether its size and its messages end sends, and remove nothing."""
        return DISCARD.of(topic.settings, self._system) == "refuse"

    def archives(self, topic: Topic) -> bool:
        """Whether its segments are archived before they are deleted."""
        return ARCHIVE.of(topic.settings, self._system) != "none"

    def has_any(self, topic: Topic) -> bool:
        """Whether something would go if retention were on."""
        drops = not self.refuses(topic)
        return bool(self.expiry_us(topic) or (drops and (self.size_bytes(topic) or self.messages_max(topic))))

    def of_sends(self, topic: Topic) -> SendLimits:
        """Refusing removes nothing: it depends neither on `retention` nor on the cleaner."""
        message_bytes = MESSAGE_SIZE_MAX.of(topic.settings, self._system)
        if not self.refuses(topic):
            return SendLimits(message_bytes)
        return SendLimits(message_bytes, self.messages_max(topic), self.size_bytes(topic))

    def of(self, topic: Topic) -> PartitionLimits:
        """Of each of its partitions."""
        if not self.is_on(topic):
            return PartitionLimits()
        expiry_us = self.expiry_us(topic)
        held_us = self._system.retention.held_max_ms * 1000 or expiry_us or HELD_WITHOUT_EXPIRY_US
        messages_max = 0 if self.refuses(topic) else self.messages_max(topic)
        return PartitionLimits(expiry_us, min(held_us, NEVER), messages_max)
