"""What `delivery="idempotent"` stands on: ids of messages, and a topic that stores no id twice
(`message_deduplication`, docs/guarantees.md)."""

from __future__ import annotations

import itertools
import os
import re
from typing import Final

from shardd.client import commands, statuses
from shardd.client.client import Client
from shardd.client.errors import FeatureUnavailableError, ServerError, SettingsError
from shardd.client.wire import Identifier

_ID: Final = slice(8, 24)  # of a record
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?) ?(us|ms|s|m|h|d)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Identities:
    """Ids of one producer: 8 random bytes and a number that rises."""

    def __init__(self) -> None:
        self._origin = os.urandom(7) + b"\x80"  # never 0, which is no id
        self._numbers = itertools.count()

    def given(self, records: list[bytes]) -> list[bytes]:
        """The records with an id each."""
        begin, end = _ID.start, _ID.stop
        ids = (next(self._numbers).to_bytes(8, "little") + self._origin for _ in records)
        return [record[:begin] + id_ + record[end:] for record, id_ in zip(records, ids, strict=True)]


async def messages_known(client: Client, stream: Identifier, topic: Identifier, deadline_s: float) -> int:
    """How many of the last ids of a partition the topic knows. FeatureUnavailableError when it knows none;
    SettingsError when it forgets them before a message is given up; ClientError."""
    try:
        found = await client.call(commands.topic_settings(stream, topic), deadline_s)
    except ServerError as error:
        if error.status in (statuses.INVALID_COMMAND, statuses.FEATURE_UNAVAILABLE):
            raise FeatureUnavailableError("this server has no settings of topics, so none without repeats") from None
        raise
    settings = {each.key: each.value for each in found}
    if settings.get("message_deduplication") != "on":
        raise FeatureUnavailableError(
            f"topic {topic} stores repeats: delivery='idempotent' wants its setting message_deduplication=on"
        )
    expiry = settings["message_deduplication_expiry"]
    if deadline_s >= seconds(expiry):
        raise SettingsError(
            f"topic {topic} knows ids for {expiry} (message_deduplication_expiry), so messages cannot be tried for "
            f"{deadline_s:g} s: make deadline_s shorter, or the expiry longer"
        )
    return int(settings["message_deduplication_max_entries"])


def seconds(duration: str) -> float:
    """Of a setting: `1 m`, `1 h 30 m`."""
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(duration))
