"""`offsets.expiry`: what is not used for as long is deleted and told; what members of groups and consumers at work have
stored stays, and everything where the setting is `never`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from shardd.config.schema import NEVER
from shardd.config.units import format_offset_expiry_us, parse_offset_expiry_us
from shardd.log.offsets_table import OFFSET_CONSUMER, OFFSET_GROUP
from shardd.protocol.unused_offsets import Members
from tests.server import test_unused_offsets
from tests.server.test_unused_offsets import DAY_US, OLD, PARTITIONS, SETTINGS, found, joined
from tests.support import wire
from tests.support.server import Server
from tests.support.top import shard_figures

data = test_unused_offsets.data
HOLDING = SETTINGS | {"SHARDD_OFFSETS_EXPIRY": "30 d", "SHARDD_OFFSETS_EXPIRY_CHECK_INTERVAL": "20 ms"}
EXPIRY = HOLDING | {"SHARDD_OFFSETS_EXPIRY_GROUP_HOLD": "10 ms"}
FIRST = 3  # strategy of a poll
GROUP = (OFFSET_GROUP, 0)


def figure(server: Server, name: str) -> int:
    return sum(row.get(name, 0) for row in shard_figures(server.address))


def await_figure(server: Server, name: str, value: int) -> None:
    deadline = time.monotonic() + 600
    while figure(server, name) < value:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


def stored(root: wire.Wire) -> list[set[tuple[int, int]]]:
    return [set(found(root, partition, 0)) for partition in range(PARTITIONS)]


def test_stored_offsets_that_are_not_used_expire_and_are_told(data: Path) -> None:
    with Server(data, EXPIRY) as server, wire.connect(server.address) as root:
        await_figure(server, "offsets.expired", PARTITIONS * (len(OLD) + 1))
        assert stored(root) == [{(OFFSET_CONSUMER, 5)}] * PARTITIONS
        await_figure(server, "jobs.offset_expiry.runs", figure(server, "jobs.offset_expiry.runs") + 4)
        assert figure(server, "offsets.expired") == PARTITIONS * (len(OLD) + 1)
        log = server.log()
        for whose in ("consumer 1", "consumer 2", "consumer 3", "group 'g'"):
            lines = [
                line for line in log.splitlines() if f"stored offsets of {whose} of topic s/t have expired" in line
            ]
            assert lines and all("not used for 30 days (offsets.expiry): 3 in partition" in line for line in lines), log
        assert "consumer 5" not in log


def test_a_group_with_members_and_a_consumer_at_work_keep_what_they_stored(data: Path, tmp_path: Path) -> None:
    """The consumer reads by places of its own and stores nothing: its poll is a use all the same."""
    with Server(data, SETTINGS) as server, wire.connect(server.address) as root:
        for partition in range(PARTITIONS):
            root.poll(0, 0, partition, strategy=FIRST, count=1, who=2)
    for interval_s in (2, 20, 200):  # until a member joins before the first run
        copy = tmp_path / f"every {interval_s} s"
        shutil.copytree(data, copy)
        settings = EXPIRY | {"SHARDD_OFFSETS_EXPIRY_CHECK_INTERVAL": f"{interval_s} s"}
        with Server(copy, settings) as server, wire.connect(server.address) as root:
            member = joined(server)
            if figure(server, "offsets.expired"):
                member.close()
                continue
            await_figure(server, "offsets.expired", PARTITIONS * 2)
            await_figure(server, "jobs.offset_expiry.runs", 4)
            assert stored(root) == [{(OFFSET_CONSUMER, 2), (OFFSET_CONSUMER, 5), GROUP}] * PARTITIONS
            member.close()
            await_figure(server, "offsets.expired", PARTITIONS * 3)  # its members are gone, its age is what it was
            assert stored(root) == [{(OFFSET_CONSUMER, 2), (OFFSET_CONSUMER, 5)}] * PARTITIONS
            return
    raise AssertionError("no member could join before the first run")


def test_a_group_keeps_what_it_stored_for_a_time_after_a_start_and_after_its_last_member(data: Path) -> None:
    """Its members of before may not have joined again; ten minutes, unless a setting says otherwise."""
    kept = [{(OFFSET_CONSUMER, 5), GROUP}] * PARTITIONS
    with Server(data, HOLDING) as server, wire.connect(server.address) as root:
        await_figure(server, "offsets.expired", PARTITIONS * len(OLD))
        await_figure(server, "jobs.offset_expiry.runs", figure(server, "jobs.offset_expiry.runs") + 4)
        assert stored(root) == kept
        member = joined(server)
        assert found(root, 0, 0)[GROUP].members == Members.SOME
        member.close()
        await_no_members(root)
        await_figure(server, "jobs.offset_expiry.runs", figure(server, "jobs.offset_expiry.runs") + 4)
        assert stored(root) == kept


def await_no_members(root: wire.Wire) -> None:
    deadline = time.monotonic() + 60
    while found(root, 0, 0)[GROUP].members == Members.SOME:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nothing_expires_unless_the_setting_says_so(data: Path) -> None:
    with Server(data, SETTINGS) as server, wire.connect(server.address) as root:
        await_figure(server, "jobs.retention.runs", 2)
        assert stored(root) == [{(OFFSET_CONSUMER, each) for each in (*OLD, 5)} | {GROUP}] * PARTITIONS
        assert not any("jobs.offset_expiry.runs" in row for row in shard_figures(server.address))


@pytest.mark.parametrize(
    ("text", "value"), [("never", NEVER), ("none", NEVER), ("2 d", 2 * DAY_US), ("8w", 56 * DAY_US)]
)
def test_the_setting_is_read_as_it_is_written(text: str, value: int) -> None:
    assert parse_offset_expiry_us(text) == value
    assert parse_offset_expiry_us(format_offset_expiry_us(value)) == value


@pytest.mark.parametrize("text", ["0", "1 d", "47 h", "5000000000 s", 30, "soon"])
def test_an_expiry_that_a_read_does_not_keep_up_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"write it with a unit|write a duration of 2 d to 4294967295 s, or never"):
        parse_offset_expiry_us(text)
