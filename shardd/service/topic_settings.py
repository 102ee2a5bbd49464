"""Settings of topics that the classic protocol cannot say (shardd.protocol.topic_settings)."""

from __future__ import annotations

from shardd.config.schema import System
from shardd.metadata import Metadata
from shardd.metadata.commands import SetTopicSettings
from shardd.protocol import topic_settings
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.topic_settings import TopicSetting
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity


class TopicSettingsService:
    """Lives on the loop thread. `settings`: the server's defaults."""

    def __init__(self, metadata: Metadata, settings: System) -> None:
        self._metadata = metadata
        self._settings = settings

    async def set_topic_settings(self, identity: Identity, request: topic_settings.SetTopicSettings) -> None:
        """Values first, then existence and permission, as UPDATE_TOPIC. Every shard has the change at the end."""
        for key, value in request.settings:
            status = topic_settings.check_setting(key, value)
            if status != Status.OK:
                raise ShardError(status, f"topic setting {key!r} = {value!r}")
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.CHANGE_TOPIC, stream, topic)
        command = SetTopicSettings(base.stream_ref(stream), base.topic_ref(topic), request.settings)
        await base.submit(self._metadata, identity, command)

    async def get_topic_settings(
        self, identity: Identity, request: topic_settings.GetTopicSettings
    ) -> tuple[TopicSetting, ...]:
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.GET_TOPIC, stream, topic)
        defaults = {topic_settings.ACK: self._settings.partition.ack}
        return tuple(
            TopicSetting(key, topic.settings.get(key, default), key in topic.settings)
            for key, default in defaults.items()
        )
