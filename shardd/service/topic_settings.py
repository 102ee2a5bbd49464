"""Settings of topics that the classic protocol cannot say (shardd.protocol.topic_settings)."""

from __future__ import annotations

from typing import Final

from shardd.config.schema import System
from shardd.metadata import Metadata
from shardd.metadata.commands import SetTopicSettings
from shardd.metadata.state import Topic
from shardd.protocol import topic_setting_table, topic_settings
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.topic_setting_table import ChangedBy
from shardd.protocol.topic_settings import TopicSetting
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity

_COMPRESSION: Final = topic_setting_table.COMPRESSION.key
_RULES: Final = {ChangedBy.TOPIC_MANAGER: Rule.CHANGE_TOPIC, ChangedBy.STREAM_MANAGER: Rule.CHANGE_STREAM}


class TopicSettingsService:
    """Lives on the loop thread. `settings`: the server's defaults."""

    def __init__(self, metadata: Metadata, settings: System) -> None:
        self._metadata = metadata
        self._settings = settings

    async def set_topic_settings(self, identity: Identity, request: topic_settings.SetTopicSettings) -> None:
        """Values first, then existence and permission, as UPDATE_TOPIC. Every shard has the change at the end."""
        settings = tuple((key, topic_setting_table.canonical(key, text)) for key, text in request.settings)
        if not self._settings.compression.allow_override and any(text for key, text in settings if key == _COMPRESSION):
            sentence = "system.compression.allow_override is false: its default holds for every topic"
            raise ShardError(Status.INVALID_CONFIGURATION, sentence)
        state = self._metadata.state
        stream, topic = base.topic_of(state, request.stream, request.topic)
        for key, _ in settings:
            base.require(state, identity, _RULES[topic_setting_table.setting_of(key).changed_by], stream, topic)
        command = SetTopicSettings(base.stream_ref(stream), base.topic_ref(topic), settings)
        await base.submit(self._metadata, identity, command)

    async def get_topic_settings(
        self, identity: Identity, request: topic_settings.GetTopicSettings
    ) -> tuple[TopicSetting, ...]:
        """Every setting of the table, those that are not set for the topic with the server's default."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.GET_TOPIC, stream, topic)
        return tuple(
            TopicSetting(key, self._shown(topic, key), key in topic.settings) for key in topic_setting_table.SETTINGS
        )

    def _shown(self, topic: Topic, key: str) -> str:
        """What holds. A 2 of CREATE_TOPIC or UPDATE_TOPIC is a choice, too, and a frozen default overrules all."""
        if key == _COMPRESSION:
            return topic_setting_table.codec_of(topic.settings, topic.compression, self._settings)
        return topic_setting_table.setting_of(key).shown(topic.settings, self._settings)
