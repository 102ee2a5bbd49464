"""A consumer by its name and the members of a group, whatever happens to topic and connections. The canaries show that
the model finds what it is for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from shardd.client import commands, history, membership, positions
from tests.models.canaries import finds
from tests.models.readers import GroupWorld, ReaderWorld
from tests.models.world import model_settings

SHORT = 12  # steps of a history that show a fault of three rules: many short ones are sooner there than long ones
BOTH = pytest.mark.parametrize("machine", [ReaderWorld, GroupWorld])


@BOTH
def test_consumer_delivers_or_tells_everything(machine: Any) -> None:
    run_state_machine_as_test(machine, settings=model_settings(30))


@BOTH
def test_consumer_that_ignores_histories_is_found(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "is_another", lambda *_: False)
    finds(machine, "read", "send", "purge")


@BOTH
def test_consumer_that_tells_no_loss_is_found(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "gaps", lambda *_: [])
    finds(machine, "read", "send", "retain", steps=SHORT)


@BOTH
def test_consumer_that_commits_what_it_has_polled_is_found(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def to_store(place: positions.Place) -> int | None:
        return place.value - 1 if place.was_read else None

    monkeypatch.setattr(positions.Place, "to_store", to_store)
    finds(machine, "read", "send", "commit")


@BOTH
def test_commit_without_its_history_is_found(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset from before a purge is stored behind it."""
    store = commands.store_offset

    def bare(*arguments: Any, **options: Any) -> Any:
        return store(*arguments, **{**options, "history": None})

    monkeypatch.setattr(commands, "store_offset", bare)
    finds(machine, "read", "send", "purge", "commit")


def test_latest_that_is_asked_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that comes later begins at its end."""

    async def wanted(self: membership.Membership) -> Any:
        self._ends = None
        return await WANTED(self)

    monkeypatch.setattr(membership.Membership, "wanted", wanted)
    finds(ReaderWorld, "read", "send", "resize", steps=SHORT)


WANTED = membership.Membership.wanted
