"""Which users and producers there are, for the engine of a worker: what a user has stored that is gone counts for no
user (docs/adr/0130-shares-of-stored-things.md)."""

from __future__ import annotations

from pathlib import Path

from shardd.engine import Engine
from shardd.metadata import Metadata
from shardd.metadata.concerns import OfUser, concern_of
from shardd.metadata.records import Record
from shardd.metadata.state import State
from shardd.worker.producers import KnownProducers


class KnownUsers:
    """Lives on the loop thread of its worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def follow(self, metadata: Metadata) -> None:
        """From now on; before partitions are opened."""
        for user in metadata.state.users.values():
            if user.incarnation:  # root has none
                self._engine.user_put(user.incarnation)
        self._engine.users_begin()
        metadata.subscribe(self._applied)

    def _applied(self, old: State, new: State, record: Record) -> None:
        concern = concern_of(old, record.command)
        if not isinstance(concern, OfUser):
            return
        before, after = old.users.get(concern.user_id), new.users.get(concern.user_id)
        was, now = (0 if user is None else user.incarnation for user in (before, after))
        if was != now and was:
            self._engine.user_drop(was)
        if was != now and now:
            self._engine.user_put(now)


def follow_owners(engine: Engine, data: Path, metadata: Metadata) -> None:
    """From now on; before partitions are opened."""
    KnownProducers(engine, data).follow(metadata)
    KnownUsers(engine).follow(metadata)
