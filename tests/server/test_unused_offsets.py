"""UNUSED_OFFSETS: stored offsets by the time of their last use, and their deletion, whichever shard is asked; a group
with members and what is in use again stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.client import SyncClient
from shardd.client.commands import join_group
from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.offsets_table import OFFSET_CONSUMER, OFFSET_GROUP
from shardd.log.stored_offsets import read_table, write_table
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.unused_offsets import NO_USER, PLACES_AT_ONCE, Members, UnusedOffset, UnusedOffsets, UnusedPage
from tests.cli.transcript import Shell
from tests.server.test_revocation import EVERYTHING, create_user
from tests.support import wire
from tests.support.server import Server

SETTINGS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}  # some requests go to the owner on the other shard
AT_ONCE = SETTINGS | {"SHARDD_OFFSETS_EXPIRY_GROUP_HOLD": "10 ms"}  # after its last member a group keeps nothing
PARTITIONS = 4
DAY_US = 86_400_000_000
OLD = (1, 2, 3)
NEXT = 5  # strategy of a poll


def joined(server: Server) -> SyncClient:
    """A member of the group, which is made when it is not there."""
    client = SyncClient(f"shardd://iggy:iggy@{server.address}")
    if client.group("s", "t", "g") is None:
        client.create_group("s", "t", "g")
    client.call(join_group("s", "t", "g"))
    return client


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of a stopped server: in each partition consumers 1 to 3, a group and consumer 5 of a user have stored something;
    that of the consumers 1 to 3 and of the group was used 40 days ago."""
    path = tmp_path / "data"
    with Server(path, SETTINGS) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        member = joined(server)
        create_user(root, "reader", EVERYTHING)
        reader = wire.Wire(server.address)
        reader.login("reader", "secret")
        for partition in range(PARTITIONS):
            root.send(0, 0, wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(10)])
            for consumer in OLD:
                root.store_offset(0, 0, partition, 3, consumer)
            reader.store_offset(0, 0, partition, 3, 5)
            member.store_offset("g", "s", "t", partition, 3, group=True)
        reader.close()
        member.close()
    for partition in range(PARTITIONS):
        directory = layout.partition_directory(path, 0, 0, partition)
        incarnation = read_incarnation(directory)
        table = read_table(directory, incarnation)
        assert table is not None and incarnation is not None and len(table.offsets) == 5
        aged = [
            each if each.id == 5 and each.kind == OFFSET_CONSUMER else each._replace(used_us=each.used_us - 40 * DAY_US)
            for each in table.offsets
        ]
        write_table(directory, incarnation, aged)
    return path


def found(
    client: wire.Wire, partition: int, age_us: int, *, delete: bool = False
) -> dict[tuple[int, int], UnusedOffset]:
    request = UnusedOffsets(0, 0, partition, 0, age_us, delete)
    page = UnusedPage.read(Reader(client.request(ExtensionCode.UNUSED_OFFSETS, request.encode())))
    assert page.next_first == 0
    return {(each.kind, each.consumer): each for each in page.offsets}


def test_what_was_not_used_for_long_is_told_and_deleted_and_the_rest_stays(data: Path) -> None:
    with Server(data, AT_ONCE) as server, wire.connect(server.address) as root:
        now_us = time.time_ns() // 1000
        for partition in range(PARTITIONS):
            everything = found(root, partition, 0)
            old = found(root, partition, 30 * DAY_US)
            assert set(old) == {(OFFSET_CONSUMER, each) for each in OLD} | {(OFFSET_GROUP, 0)}
            assert set(everything) == set(old) | {(OFFSET_CONSUMER, 5)}
            assert all(each.user == NO_USER and not each.members for each in old.values())
            fresh = everything[OFFSET_CONSUMER, 5]
            assert fresh.user == 1 and fresh.value == 3 and now_us - DAY_US < fresh.used_us
            assert not found(root, partition, 50 * DAY_US)
        member = joined(server)
        for partition in range(PARTITIONS):
            assert found(root, partition, 30 * DAY_US)[OFFSET_GROUP, 0].members == Members.SOME
            root.poll(0, 0, partition, strategy=NEXT, count=1, who=2)  # it goes on: in use again
            deleted = found(root, partition, 30 * DAY_US, delete=True)
            assert set(deleted) == {(OFFSET_CONSUMER, 1), (OFFSET_CONSUMER, 3)}
        member.close()
    with Server(data, AT_ONCE) as server, wire.connect(server.address) as root:
        for partition in range(PARTITIONS):
            left = set(found(root, partition, 0))
            assert left == {(OFFSET_CONSUMER, 2), (OFFSET_CONSUMER, 5), (OFFSET_GROUP, 0)}
            assert set(found(root, partition, 30 * DAY_US, delete=True)) == {(OFFSET_GROUP, 0)}  # it has no member now


def test_a_group_whose_members_may_come_back_keeps_what_it_stored(data: Path) -> None:
    """After a start, and after its last member has gone: for `offsets.expiry_group_hold`."""
    group = {(OFFSET_GROUP, 0)}
    with Server(data, SETTINGS) as server, wire.connect(server.address) as root:
        for partition in range(PARTITIONS):
            deleted = found(root, partition, 30 * DAY_US, delete=True)
            assert set(deleted) == {(OFFSET_CONSUMER, each) for each in OLD}
            [left] = found(root, partition, 30 * DAY_US).values()
            assert left.kind == OFFSET_GROUP and left.members == Members.MAY_COME_BACK
        member = joined(server)
        assert [each.members for each in found(root, 0, 30 * DAY_US).values()] == [Members.SOME]
        member.close()
        deadline = time.monotonic() + 60
        while (left := found(root, 0, 30 * DAY_US)[OFFSET_GROUP, 0]).members == Members.SOME:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert left.members == Members.MAY_COME_BACK
        assert not found(root, 0, 30 * DAY_US, delete=True)
        assert set(found(root, 0, 30 * DAY_US)) == group


def test_a_deletion_needs_an_age_and_the_right_to_change_the_topic(data: Path) -> None:
    with Server(data, SETTINGS) as server, wire.connect(server.address) as root:
        request = UnusedOffsets(0, 0, 0, 0, 0, delete=True).encode()
        assert root.status(ExtensionCode.UNUSED_OFFSETS, request) == Status.INVALID_FORMAT
        create_user(root, "nobody", None)
        plain = wire.Wire(server.address)
        plain.login("nobody", "secret")
        for delete in (False, True):
            request = UnusedOffsets(0, 0, 0, 0, DAY_US, delete=delete).encode()
            assert plain.status(ExtensionCode.UNUSED_OFFSETS, request) == Status.UNAUTHORIZED
        plain.close()
        assert len(found(root, 0, 0)) == 5


def test_many_are_told_in_pages(tmp_path: Path) -> None:
    count = 2 * PLACES_AT_ONCE + 10
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 1)
        root.send(0, 0, wire.to_partition(0), [wire.message(b"x")])
        for consumer in range(count):
            root.store_offset(0, 0, 0, 0, consumer)
        seen: list[int] = []
        first, pages = 0, 0
        while first or not pages:
            request = UnusedOffsets(0, 0, 0, first, 0, delete=False).encode()
            page = UnusedPage.read(Reader(root.request(ExtensionCode.UNUSED_OFFSETS, request)))
            assert len(page.offsets) <= PLACES_AT_ONCE
            seen += [each.consumer for each in page.offsets]
            first, pages = page.next_first, pages + 1
        assert sorted(seen) == list(range(count)) and pages == 3


@pytest.fixture
def shell(data: Path, tmp_path: Path) -> Iterator[Shell]:
    with Server(data, AT_ONCE) as server:
        yield Shell(server.address, tmp_path)


def test_offset_list_and_delete_by_age(shell: Shell) -> None:
    listed = shell.run("shardd offset list s t --unused 30d -o jsonl")
    assert listed.count('"kind":"consumer"') == len(OLD) * PARTITIONS
    assert listed.count('"kind":"group","consumer":"g"') == PARTITIONS
    assert shell.run("shardd offset list s t -o jsonl").count("\n") == 5 * PARTITIONS
    assert shell.run("shardd offset list s t --unused 50d -o jsonl") == ""
    assert shell.run("shardd offset delete s t --unused 30d --dry-run -o jsonl") == listed
    assert shell.run("shardd offset list s t --unused 30d -o jsonl") == listed
    assert shell.run("shardd offset delete s t --unused 30d --yes -o jsonl") == listed
    assert shell.run("shardd offset list s t --unused 30d -o jsonl") == ""
    assert shell.run("shardd offset list s t -o jsonl").count("\n") == PARTITIONS
    for words in ("delete s t --unused 0s --yes", "delete s t --yes", "list s t 5 --unused 3d", "delete s t 5 -y"):
        said = shell.run(f"shardd offset {words}")
        assert said.startswith("shardd: ") and said.endswith("[2]\n"), said


def test_offset_delete_leaves_and_names_groups_whose_members_may_come_back(data: Path, tmp_path: Path) -> None:
    with Server(data, SETTINGS) as server:
        shell = Shell(server.address, tmp_path)
        listed = shell.run("shardd offset list s t --unused 30d -o jsonl")
        assert listed.count('"members":false,"may_come_back":true') == PARTITIONS
        for words in ("--dry-run", "--yes"):
            said = shell.run(f"shardd offset delete s t --unused 30d {words} -o jsonl")
            assert said.count('"kind":"consumer"') == len(OLD) * PARTITIONS and '"kind":"group"' not in said
            assert f"shardd: {PARTITIONS} stored offsets of groups stay, their members may come back" in said
        assert shell.run("shardd offset list s t --unused 30d -o jsonl").count('"kind":"group"') == PARTITIONS
