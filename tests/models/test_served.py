"""Readers of a real server, through its doors: over purges, recreations, retention, cuts and restarts all of them have
the same rows. The canaries show that the model finds what it is for."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from shardd.client import history
from tests.models.door_followers import FollowReader, TailReader
from tests.models.door_readers import (
    ClassicReader,
    EventReader,
    ExportReader,
    HttpReader,
    MemberReader,
    NamedReader,
    Reader,
    SubscribedReader,
)
from tests.models.history import Broken, TopicHistory, Where, demand
from tests.models.served import NAMESPACE, NATIVE, NUMBER, PARTITIONS, REFILL, RESTART_TURNS, Row, ServedWorld, Site
from tests.models.ways import Cut
from tests.models.world import model_settings

SETTINGS: Final = model_settings(3, steps=12, most=300)


def served(machine: type[ServedWorld], site: Site) -> Any:
    return type(machine.__name__, (machine,), {"site": site})


ALL: Final[tuple[type[Reader], ...]] = (
    NamedReader,
    MemberReader,
    EventReader,
    SubscribedReader,
    FollowReader,
    HttpReader,
    ClassicReader,
    ExportReader,
)


class AllReaders(ServedWorld):
    """Every reader reads what there is, now and then."""

    @initialize(partitions=PARTITIONS)
    def begin(self, partitions: int) -> None:
        self.open(partitions)
        self.readers = [kind(self.site, self.stream, self.name, self.topic) for kind in ALL]

    @rule(leaves=st.booleans())
    def read(self, leaves: bool) -> None:
        for each in self.readers:
            each.read()
            each.check()
        self._compare()
        for each in self.readers if leaves else []:
            each.anew()

    def _compare(self) -> None:
        for each in self.topic.partitions:
            for offset in each.kept(0, each.end):
                [where] = self.topic.where[each.rows[offset]]
                rows = {type(one).__name__: one.rows.get(where) for one in self.readers}
                payload, headers = self.sent[each.rows[offset]]
                first = rows["NamedReader"]
                demand(all(row == first for row in rows.values()), f"{where} differs: {rows}")
                demand(first is not None and first[:2] == (payload, headers), f"{where} was sent otherwise: {first}")

    def teardown(self) -> None:
        if not hasattr(self, "readers"):
            return
        try:
            self.read(leaves=False)
        finally:
            self.end()

    def end(self) -> None:
        for each in self.readers:
            each.close()
        self.drop()


def test_all_readers_of_a_server_have_the_same_rows(site: Site) -> None:
    run_state_machine_as_test(served(AllReaders, site), settings=SETTINGS)


class OneReader(ServedWorld):
    """A reader that takes a few, leaves and comes back."""

    kind: ClassVar[type[Reader]]

    @initialize(partitions=PARTITIONS, before=REFILL)
    def begin(self, partitions: int, before: int) -> None:
        self.open(partitions)
        self._fill(before)
        self.reader = self.kind(self.site, self.stream, self.name, self.topic)

    @rule(number=NUMBER, count=st.integers(1, 5))
    def take(self, number: int, count: int) -> None:
        partition = self._partition(number)
        for _ in range(count):
            if self.reader.missing(partition):
                self.reader.take(partition)
        self.reader.check()

    @rule()
    def read(self) -> None:
        self.reader.read()
        self.reader.check()

    @rule()
    def anew(self) -> None:
        self.reader.anew()
        self.reader.check()

    def teardown(self) -> None:
        if not hasattr(self, "reader"):
            return
        try:
            self.reader.read()
            self.reader.account.check_end()
        finally:
            self.reader.close()
            self.drop()


KINDS: Final = (NamedReader, MemberReader, EventReader, SubscribedReader, FollowReader, TailReader)


def one_reader(kind: type[Reader], site: Site) -> Any:
    stream = NAMESPACE if issubclass(kind, SubscribedReader) else NATIVE
    return type(kind.__name__, (OneReader,), {"site": site, "kind": kind, "stream": stream})


@pytest.mark.parametrize("kind", KINDS)
def test_reader_of_a_server_delivers_or_tells_everything(site: Site, kind: type[Reader]) -> None:
    run_state_machine_as_test(one_reader(kind, site), settings=SETTINGS)


# ---- planted faults ----


class BareEvents(EventReader):
    """It keeps the offset of its last event without the history."""

    def _took(self, partition: int, event: dict[str, str]) -> None:
        super()._took(partition, event)
        self.ids[partition] = event["id"].rpartition("-")[2]


class DeafEvents(EventReader):
    """It does not hear what is lost."""

    def _took(self, partition: int, event: dict[str, str]) -> None:
        if event.get("event") != "reset":
            super()._took(partition, event)


class DeafFollower(FollowReader):
    """Its standard error is not read."""

    def _took(self, line: bytes) -> None:
        if line.startswith(b"{") or not line:
            super()._took(line)


class BareSubscriptions(SubscribedReader):
    """It comes back behind the last offset, whatever happened to the stream."""

    def anew(self) -> None:
        self.close()

    def begin_at(self, partition: int) -> dict[str, int]:
        last = self._last.get(partition)
        return super().begin_at(partition) if last is None else {"startPosition": 1, "startOffset": last.offset + 1}


@pytest.mark.parametrize("kind", [BareEvents, DeafEvents, DeafFollower, BareSubscriptions])
def test_reader_of_a_server_that_forgets_the_history_is_found(site: Site, kind: type[Reader]) -> None:
    """One sequence of the machine: each step waits for a real server."""
    world = one_reader(kind, site)()
    world.begin(1, 5)
    world.read()
    if kind not in (DeafEvents, DeafFollower):
        world.anew()
    world.purge(9)
    with pytest.raises(Broken, match=r"without a word|no reset was told"):
        world.read()
    world.reader.close()
    world.drop()


def test_consumer_of_a_server_that_ignores_histories_is_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    world = served(AllReaders, site)()
    world.begin(1)
    world.send(0, 5, b"", "")
    world.read(leaves=False)
    monkeypatch.setattr(history, "is_another", lambda *_: False)
    world.purge(9)
    with pytest.raises(Broken, match="no reset was told"):
        world.read(leaves=False)
    world.end()


def test_rows_that_differ_are_found(site: Site) -> None:
    world = served(AllReaders, site)()
    world.begin(1)
    world.send(0, 5, b"", "a")
    world.read(leaves=False)
    [events] = [each for each in world.readers if isinstance(each, EventReader)]
    where = next(iter(events.rows))
    events.rows[where] = events.rows[where]._replace(headers={})
    with pytest.raises(Broken, match="differs"):
        world._compare()
    world.end()


# ---- planted faults that a cut shows ----


class SkippingEvents(EventReader):
    """It comes back one event too far."""

    def leave(self, partition: int) -> None:
        if partition in self._open and partition in self.ids:
            parts = self.ids[partition].split("-")
            self.ids[partition] = f"{parts[0]}-{int(parts[-1]) + 1}"
        super().leave(partition)


class ForgetfulEvents(EventReader):
    """It comes back without its last event."""

    def leave(self, partition: int) -> None:
        self.ids.pop(partition, None)
        super().leave(partition)


class SkippingSubscriptions(SubscribedReader):
    """It comes back one message too far."""

    def begin_at(self, partition: int) -> dict[str, int]:
        begin = super().begin_at(partition)
        return {name: value + (name == "startOffset") for name, value in begin.items()}


class SkippingFollower(FollowReader):
    """The first message behind a cut does not reach it."""

    _seen = 0

    def _took(self, line: bytes) -> None:
        troubles, self._seen = self._seen, self.site.ways.troubles
        if not (line.startswith(b"{") and 0 < troubles < self._seen):
            super()._took(line)


class HastyConsumer(NamedReader):
    """It stores the last message behind a cut, and does not hand it over."""

    def __init__(self, site: Site, stream: str, name: str, topic: TopicHistory) -> None:
        super().__init__(site, stream, name, topic)
        self._before = site.ways.troubles

    def hand(self, partition: int, offset: int, row: Row) -> Where:
        if self.site.ways.troubles > self._before and offset == self.topic.partitions[partition].end - 1:
            return Where(partition, 0, offset)
        return super().hand(partition, offset, row)

    def anew(self) -> None:
        if self._consumer is not None:
            self._consumer.done()
            self._consumer.commit()
        super().anew()


class HastyMember(HastyConsumer, MemberReader):
    """The same as the member of a group."""


OVER_A_CUT: Final = (
    (SkippingEvents, Cut(is_reset=True)),
    (SkippingEvents, Cut(is_reset=False)),
    (SkippingEvents, Cut(is_reset=True, silence_s=0.3)),
    (SkippingSubscriptions, Cut(is_reset=True)),
    (SkippingFollower, Cut(is_reset=True)),
)


def read_world(kind: type[Reader], site: Site) -> Any:
    """Five messages are read."""
    world = one_reader(kind, site)()
    world.begin(1, 5)
    world.read()
    return world


@pytest.mark.parametrize(("kind", "cut"), OVER_A_CUT)
def test_reader_of_a_server_that_leaves_a_message_out_behind_a_cut_is_found(
    site: Site, kind: type[Reader], cut: Cut
) -> None:
    world = read_world(kind, site)
    world.cut(cut)
    world.send(0, 3, b"", "")
    with pytest.raises(Broken, match=r"left out without a word|told to be lost, and are there"):
        world.read()
    world.reader.close()
    world.drop()


def test_reader_of_a_server_that_leaves_a_message_out_of_a_cut_answer_is_found(site: Site) -> None:
    world = one_reader(SkippingEvents, site)()
    world.begin(1, 9)
    world.cut_answers(Cut(is_reset=False), 1200)
    with pytest.raises(Broken, match="left out without a word"):
        world.read()
    world.reader.close()
    world.drop()


def test_reader_of_a_server_that_begins_anew_behind_a_restart_is_found(site: Site) -> None:
    world = read_world(ForgetfulEvents, site)
    world.restart(RESTART_TURNS, kills=True)
    world.send(0, 3, b"", "")
    with pytest.raises(Broken, match="comes behind offset 4"):
        world.read()
    world.reader.close()
    world.drop()


@pytest.mark.parametrize("kind", [HastyConsumer, HastyMember])
def test_consumer_of_a_server_that_commits_behind_a_cut_what_it_keeps_is_found(site: Site, kind: type[Reader]) -> None:
    world = read_world(kind, site)
    world.cut(Cut())
    world.send(0, 3, b"", "")
    world.take(0, 1)
    with pytest.raises(Broken, match="is committed, and was not handed over"):
        world.anew()
    world.reader.close()
    world.drop()
