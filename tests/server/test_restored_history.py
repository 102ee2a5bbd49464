"""A restored directory begins a history of its own: whoever remembers an incarnation is told, stored offsets stay."""

from __future__ import annotations

from pathlib import Path

from shardd.backup.create import create_backup
from shardd.backup.restore import restore_backup
from shardd.client import commands
from shardd.client.values import PartitionBounds
from tests.support import wire
from tests.support.history import incarnation_in
from tests.support.links import root_link
from tests.support.server import ONE_SHARD, Server

GROUP = wire.group("workers")


def bounds(server: Server) -> list[PartitionBounds]:
    with root_link(server.address) as connection:
        return list(connection.call(commands.bounds("s", "t")).partitions)


def send(server: Server, text: str, count: int) -> None:
    with wire.connect(server.address) as connection:
        for number in range(count):
            connection.send(0, 0, wire.to_partition(0), [wire.message(f"{text} {number}".encode())])


def payloads(server: Server) -> list[str]:
    with wire.connect(server.address) as connection:
        return [each.payload.decode() for each in connection.read_all(0, 0, 0)]


def test_a_restored_directory_has_other_incarnations_and_the_same_stored_offsets(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ONE_SHARD) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 2)
        send(server, "before", 30)
        with wire.connect(server.address) as connection:
            connection.store_offset(0, 0, 0, 12)
        taken = bounds(server)
        made = create_backup(server.data_dir, tmp_path / "backups")
        send(server, "first history", 10)
        with wire.connect(server.address) as connection:
            connection.purge_topic(0, 0)
        purged = bounds(server)
    seen = {taken[0].incarnation, purged[0].incarnation}
    restore_backup(made.path, tmp_path / "restored again")
    seen.add(incarnation_in(tmp_path / "restored again"))
    restore_backup(made.path, tmp_path / "restored", link=True)
    restored = Server(tmp_path / "restored", ONE_SHARD)
    for lives in (1, 2):
        with restored:
            found = bounds(restored)
            assert found[0].incarnation == found[1].incarnation > max(taken[0].incarnation, purged[0].incarnation)
            assert (found[0].incarnation in seen) == (lives == 2)
            seen.add(found[0].incarnation)
            with wire.connect(restored.address) as connection:
                assert connection.get_offset(0, 0, 0) == 12
                assert connection.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=1).messages[0].offset == 13
            if lives == 1:
                send(restored, "second history", 5)
                with wire.connect(restored.address) as connection:  # the metadata goes on behind the jump
                    connection.create_topic(0, "another", 1)
            expected = [f"before {n}" for n in range(30)] + [f"second history {n}" for n in range(5)]
            assert payloads(restored) == expected
            if lives == 2:
                with wire.connect(restored.address) as connection:
                    connection.purge_topic(0, 0)
                send(restored, "after", 2)
                assert bounds(restored)[0].incarnation not in seen and payloads(restored) == ["after 0", "after 1"]
    again = create_backup(tmp_path / "restored", tmp_path / "backups")
    assert again.backup.partitions[0].incarnation > found[0].incarnation and not again.backup.left_out
    assert len(seen) == 4
