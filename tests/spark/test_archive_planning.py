"""What planning over an archive of many files costs, and reading one whose topic is gone. No Spark, no server."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import archive_listing, options, planner
from shardd.spark.archive_listing import file_name
from shardd.spark.loss import DataLossError
from shardd.spark.pieces import Locations
from shardd.spark.positions import OptionError, cuts
from shardd.spark.source import ShardReader
from tests.spark.lake import NAME, archive_file

# ---- planning ----


def many_partitions(root: Path, partitions: int, files: int) -> TopicBounds:
    directory = Path(archive_listing.topic_path(str(root), NAME))
    directory.mkdir(parents=True)
    for partition, number in itertools.product(range(partitions), range(files)):
        (directory / file_name(partition, 7, 100 * number, 100 * number + 100)).touch()
    os.utime(directory, (0, 0))  # as old as an archive is
    bounds = tuple(
        PartitionBounds(n, 0, 7, 100 * files - 50, 100 * files + 10, 100 * files + 10, 6000, 60)
        for n in range(partitions)
    )
    return TopicBounds(1, 1, NAME.stream, NAME.topic, bounds)


@pytest.mark.parametrize(
    ("partitions", "files"),
    [
        (100, 10),
        (1, 1000),
        pytest.param(1000, 10, marks=pytest.mark.slow),
        pytest.param(1, 10_000, marks=pytest.mark.slow),
    ],
)
def test_planning_lists_an_archive_once(
    tmp_path: Path, partitions: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And looks at each file name a few times, not once for each of the others."""
    topic = many_partitions(tmp_path, partitions, files)
    listed: list[str] = []
    names = archive_listing._names

    def counted(directory: str) -> list[str]:
        listed.append(directory)
        return names(directory)

    monkeypatch.setattr(archive_listing, "_names", counted)
    given = {"subscribe": str(NAME), "username": "u", "password": "p", "archivePath": str(tmp_path)}
    parsed = options.parse(given, streaming=False)
    tasks = 0
    for partition in topic.partitions:
        first, locations = planner.earliest(parsed, NAME, partition), Locations(parsed, topic, partition)
        for start, end in cuts(first, partition.end, 100):
            pieces = locations.pieces(start, end)
            assert (pieces[0].start, pieces[-1].end) == (start, end)
            tasks += 1
    assert tasks == partitions * (files + 1)
    assert len(listed) == 1


def test_a_plan_sees_files_that_came_since_the_last_one(tmp_path: Path) -> None:
    for number in range(20):
        archive_file(tmp_path, 10 * number, 10)
        assert len(archive_listing.find(str(tmp_path), NAME, 0, 5)) == number + 1
    directory = Path(archive_listing.topic_path(str(tmp_path), NAME))
    os.utime(directory, (0, 0))
    assert len(archive_listing.find(str(tmp_path), NAME, 0, 5)) == 20
    (directory / file_name(0, 5, 200, 210)).touch()
    assert len(archive_listing.find(str(tmp_path), NAME, 0, 5)) == 21


# ---- an archive without its topic ----


def read_without_a_server(root: Path, **more: str) -> list[int]:
    given = {"subscribe": str(NAME), "readMode": "archive", "archivePath": str(root), **more}
    reader = ShardReader(options.parse(given, streaming=False), ("offset",))
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_an_archive_is_read_without_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHARDD_USERNAME", "SHARDD_PASSWORD", "SHARDD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    archive_file(tmp_path, 100, 100)
    archive_file(tmp_path, 200, 100, group_rows=30)
    archive_file(tmp_path, 0, 500, incarnation=4)  # before a purge
    assert read_without_a_server(tmp_path) == list(range(100, 300))
    assert read_without_a_server(tmp_path, startingOffsets='{"shop/orders": {"0": 150}}') == list(range(150, 300))
    between = {"startingOffsetsByTimestamp": '{"shop/orders": {"0": 0}}', "endingTimestamp": "251"}
    assert read_without_a_server(tmp_path, **between) == list(range(100, 251)), "offset n was appended in millisecond n"
    pattern = {"subscribe": "", "subscribePattern": "shop/.*"}
    assert read_without_a_server(tmp_path, **pattern) == list(range(100, 300))


def test_what_an_archive_does_not_have_is_told(tmp_path: Path) -> None:
    archive_file(tmp_path, 100, 100)
    archive_file(tmp_path, 300, 100)
    with pytest.raises(
        OptionError, match="offsets 200 to 300 of partition 0 of 'shop/orders' are in no sealed segment"
    ):
        read_without_a_server(tmp_path)
    with pytest.raises(LookupError, match="has no topic 'shop/others'"):
        read_without_a_server(tmp_path, subscribe="shop/others")
    with pytest.raises(LookupError, match="has no partition 3"):
        read_without_a_server(tmp_path, subscribe="", assign='{"shop/orders": [0, 3]}')
    with pytest.raises(OptionError, match="needs the option 'archivePath'"):
        read_without_a_server(tmp_path, archivePath="")


@pytest.mark.parametrize("accepted", [False, True])
def test_a_file_that_goes_between_plan_and_read_is_told_or_left_out(tmp_path: Path, accepted: bool) -> None:
    """There is no server to ask what became of it."""
    _, gone, _ = [archive_file(tmp_path, start, 100) for start in (0, 100, 200)]
    given = {"subscribe": str(NAME), "readMode": "archive", "archivePath": str(tmp_path)}
    reader = ShardReader(options.parse(given | {"failOnDataLoss": str(not accepted)}, streaming=False), ("offset",))
    planned = reader.partitions()
    gone.unlink()

    def offsets() -> list[int]:
        return [n for one in planned for batch in reader.read(one) for n in batch.column("offset").to_pylist()]

    if accepted:
        assert offsets() == [*range(100), *range(200, 300)]
    else:
        with pytest.raises(DataLossError, match="100 to 200"):
            offsets()
