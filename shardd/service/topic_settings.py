"""SET_TOPIC_SETTINGS and GET_TOPIC_SETTINGS (shardd.protocol.topic_settings)."""

from __future__ import annotations

from shardd.metadata.commands import SetTopicSettings
from shardd.protocol import topic_settings
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.topic_settings import TopicSetting
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext


async def set_topic_settings(context: ShardContext, caller: Caller, request: topic_settings.SetTopicSettings) -> bytes:
    """Values first, then existence and permission, as UPDATE_TOPIC. Every shard has the change when this returns."""
    for key, value in request.settings:
        status = topic_settings.check_setting(key, value)
        if status != Status.OK:
            raise ShardError(status, f"topic setting {key!r} = {value!r}")
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    command = SetTopicSettings(base.stream_ref(stream), base.topic_ref(topic), request.settings)
    await base.submit(context, caller, command)
    return b""


async def get_topic_settings(context: ShardContext, caller: Caller, request: topic_settings.GetTopicSettings) -> bytes:
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.GET_TOPIC, stream, topic)
    defaults = {topic_settings.ACK: context.settings.system.partition.ack}
    found = (
        TopicSetting(key, topic.settings.get(key, default), key in topic.settings) for key, default in defaults.items()
    )
    return topic_settings.encode_reply(tuple(found))
