"""Who has changed what: one line for each change that a client has made, whatever it came over. What is changed is told
by id and name; of values only those that are no secret and no content."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shardd.metadata.commands import Command, Ref
from shardd.metadata.state import Partition, State, Stream, Topic
from shardd.runtime.audit_file import LOGGER, AuditEntry, Named
from shardd.service.identity import Identity

_audit: Final = logging.getLogger(LOGGER)
_VALUES: Final = (
    *("name", "partitions_count", "count", "active"),
    *("title", "partition", "partitions", "readonly", "resume_all", "group_name", "consumer"),
)
LOGINS_INTERVAL_S: Final = 10.0
_GONE: Final = "?"


def tell_change(before: State, identity: Identity, command: Command, made: int) -> None:
    """`before`: the metadata without the change. `made`: the id of what a command creates."""
    fields = {field: getattr(command, field) for field in command.__struct_fields__}
    refs = {field: value for field, value in fields.items() if isinstance(value, Ref)}
    action = type(command).__name__.removesuffix("WithSettings")  # a form of the record, not another action
    what = {field: Named(ref.id, _name(before, field, refs)) for field, ref in refs.items()}
    values = {field: value for field, value in fields.items() if field in _VALUES and value is not None}
    _tell(before, identity, action, what, values, made if action.startswith("Create") else None)


def tell_deleted_segments(state: State, identity: Identity, place: tuple[Stream, Topic, Partition], count: int) -> None:
    """Up to so many: the only change by a client that is no change of the metadata, and removes messages."""
    stream, topic, partition = place
    what = {"stream": Named(stream.id, stream.name), "topic": Named(topic.id, topic.name)}
    _tell(state, identity, "DeleteSegments", what, {"partition": partition.id, "count": count}, None)


class AuditOfLogins:
    """Logins that a setting makes, without a password: anybody may cause them, so at most one line in
    LOGINS_INTERVAL_S for each setting tells of them, with how many there were since the line before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def tell(self, state: State, identity: Identity, setting: str) -> None:
        """`identity`: who has been logged in."""
        logins = self._untold.get(setting, 0) + 1
        now_s = self._clock()
        if now_s < self._due_s.get(setting, now_s):
            self._untold[setting] = logins
            return
        self._due_s[setting] = now_s + LOGINS_INTERVAL_S
        self._untold[setting] = 0
        _tell(state, identity, "LoginBySetting", {}, {"setting": setting, "logins": logins}, None)


def _tell(
    state: State,
    identity: Identity,
    action: str,
    what: dict[str, Named],
    values: dict[str, object],
    made: int | None,
) -> None:
    user = state.users.get(identity.user)
    name = user.name if user is not None and user.incarnation == identity.incarnation else "deleted"
    door = "" if identity.session is None else identity.session.door
    entry = AuditEntry(identity.user, name, identity.address, door, action, what, values, made)
    _audit.info("%s", entry, extra={"audit": entry})


def _name(state: State, field: str, refs: dict[str, Ref]) -> str:
    """`_GONE` when there is none with that id any more."""
    if field == "user":
        user = state.users.get(refs["user"].id)
        return _GONE if user is None else user.name
    stream = state.streams.get(refs["stream"].id)
    if stream is None or field == "stream":
        return _GONE if stream is None else stream.name
    topic = stream.topics.get(refs["topic"].id)
    if topic is None or field == "topic":
        return _GONE if topic is None else topic.name
    group = topic.groups.get(refs["group"].id) if field == "group" else None
    return _GONE if group is None else group.name
