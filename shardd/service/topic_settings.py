"""SET_TOPIC_SETTINGS and GET_TOPIC_SETTINGS (shardd.protocol.topic_settings)."""

from __future__ import annotations

from typing import Final

from shardd.metadata.commands import SetTopicSettings
from shardd.protocol import topic_setting_table, topic_settings
from shardd.protocol.topic_setting_table import ChangedBy
from shardd.protocol.topic_settings import TopicSetting
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext

_RULES: Final = {ChangedBy.TOPIC_MANAGER: Rule.CHANGE_TOPIC, ChangedBy.STREAM_MANAGER: Rule.CHANGE_STREAM}


async def set_topic_settings(context: ShardContext, caller: Caller, request: topic_settings.SetTopicSettings) -> bytes:
    """Values first, then existence and permission, as UPDATE_TOPIC. Every shard has the change when this returns."""
    settings = tuple((key, topic_setting_table.canonical(key, text)) for key, text in request.settings)
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    for key, _ in settings:
        base.require(context, caller, _RULES[topic_setting_table.setting_of(key).changed_by], stream, topic)
    command = SetTopicSettings(base.stream_ref(stream), base.topic_ref(topic), settings)
    await base.submit(context, caller, command)
    return b""


async def get_topic_settings(context: ShardContext, caller: Caller, request: topic_settings.GetTopicSettings) -> bytes:
    """Every setting of the table, those that are not set for the topic with the server's default."""
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.GET_TOPIC, stream, topic)
    system = context.settings.system
    found = (
        TopicSetting(key, setting.shown(topic.settings, system), key in topic.settings)
        for key, setting in topic_setting_table.SETTINGS.items()
    )
    return topic_settings.encode_reply(tuple(found))
