"""The short form of `make crash-delete`, and proof that its checker finds what was planted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.incarnation import read_incarnation, write_incarnation
from tests.crash import delete_kills, delete_subject
from tests.crash.delete_changes import ALL, Purge
from tests.crash.delete_subject import Change, FindingError, Subject, check_directories
from tests.support import wire
from tests.support.server import Server

SHORT = ("CREATE_TOPIC", "DELETE_STREAM", "PURGE_TOPIC")
PLANTED = 3  # the partition that comes back


def test_nothing_comes_back_and_nothing_is_lost_when_a_change_is_cut_short(tmp_path: Path) -> None:
    scenarios = tuple(scenario for scenario in ALL if scenario.name in SHORT)
    battery = delete_kills.Battery(tmp_path / "data", seed=6, level="written")
    battery.run(6, scenarios, measured=0)
    assert battery.figures["kills"] == 6


class Planting:
    """A purged topic, and the directory that its partition had before."""

    def __init__(self, server: Server, aside: Path, name: str) -> None:
        self.server, self.aside = server, aside
        self.subject = Subject(name, 1, 4, 4)
        self.scenario: Purge = next(scenario for scenario in ALL if isinstance(scenario, Purge))
        with wire.connect(server.address) as connection:
            self.subject.make(connection)
            self.place = layout.partition_directory(server.data_dir, connection.streams()[name], 0, PLANTED)
            shutil.copytree(self.place, aside)
            self.change = Change("PURGE_TOPIC", lambda each: self.scenario.run(each, self.subject))
            self.change.execute(connection)
            assert self.change.acknowledged
            self.check()

    def check(self) -> None:
        with wire.connect(self.server.address) as connection:
            self.scenario.check(connection, self.subject, self.change)

    def restart_with(self, incarnation: int | None) -> None:
        """With the earlier directory, `incarnation` (its own for None) in its marker."""
        self.server.stop()
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.aside, self.place)
        if incarnation is not None:
            write_incarnation(self.place, incarnation)
        self.server.start()


def test_a_directory_that_is_back_as_it_was_is_not_read_and_one_that_passes_for_the_present_is_found(
    server: Server, tmp_path: Path
) -> None:
    planting = Planting(server, tmp_path / "aside", "purged")
    before = read_incarnation(tmp_path / "aside")
    planting.restart_with(None)
    planting.check()  # the server itself has put it away
    with wire.connect(server.address) as connection:
        planting.subject.check_usable(connection, 0, PLANTED)
    now = read_incarnation(planting.place)
    assert before is not None
    assert now is not None
    assert now > before
    planting.restart_with(now)
    with pytest.raises(FindingError, match="resurrected"):
        planting.check()


def test_a_directory_that_nobody_knows_is_found_and_put_away_at_the_next_start(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planting = Planting(server, tmp_path / "aside", "deleted")
    with wire.connect(server.address) as connection:
        connection.delete_stream("deleted")
    assert check_directories(server) == 0
    shutil.copytree(tmp_path / "aside", planting.place)
    monkeypatch.setattr(delete_subject, "DISK_WAIT_S", 0.3)
    with pytest.raises(FindingError, match="unknown directory"):
        check_directories(server)
    server.stop()
    server.start()
    assert check_directories(server) == 0
    assert not planting.place.exists()


def test_messages_that_are_gone_and_objects_that_were_not_made_are_found(server: Server) -> None:
    subject = Subject("lost", 1, 4, 4)
    create = next(scenario for scenario in ALL if scenario.name == "CREATE_TOPIC")
    with wire.connect(server.address) as connection:
        subject.make(connection)
        subject.check_whole(connection, 0, range(4))
        never = Change("CREATE_TOPIC", lambda each: None)
        never.execute(connection)
        with pytest.raises(FindingError, match="missing"):
            create.check(connection, subject, never)
        connection.purge_topic("lost", 0)
        with pytest.raises(FindingError, match="lost"):
            subject.check_whole(connection, 0, range(4))
