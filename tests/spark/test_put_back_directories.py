"""A data directory that is put back as files: it has the histories it had, and other messages behind its end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from shardd.client.marks import Mark
from shardd.spark import archive_files
from shardd.spark.loss import DataLossError
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.common import PipelineError
from tests.spark.direct import Stream, everything
from tests.spark.support import DELETE_SEGMENTS, Topic, settle, source_of
from tests.spark.test_pipelines import stored, target_of
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD, Server

SMALL = {**ONE_SHARD, "SHARDD_SYSTEM_SEGMENT_SIZE": "64 KiB", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "100 ms"}
COPIED = 1500  # messages in the copy
READ = 500  # behind them, which were read
OTHERS = 800  # behind the copy that was put back
EARLIEST = {"startingOffsets": "earliest"}


def payloads_of(text: str, count: int) -> list[bytes]:
    return [f"{text} {number}:".encode() + b"x" * 60 for number in range(count)]


def send(topic: Topic, payloads: list[bytes]) -> None:
    for first in range(0, len(payloads), 100):
        batch = [wire.message(payload) for payload in payloads[first : first + 100]]
        topic.connection.send("shop", "rows", wire.to_partition(0), batch)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all tests begin with and put back."""
    place = tmp_path_factory.mktemp("copied") / "data"
    with Server(place, SMALL) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("shop"), "rows", 1)
        topic = Topic(server, "shop", connection)
        send(topic, payloads_of("kept", COPIED))
        settle(topic)
    return place


class Kept:
    """A server whose directory is a copy, goes on, and is put back."""

    def __init__(self, directory: Path, copied: Path) -> None:
        self._copy = copied
        port = free_port()  # a query finds the server again where it was
        self._server = Server(directory / "data", {**SMALL, "SHARDD_TCP_ADDRESS": f"127.0.0.1:{port}"})
        shutil.copytree(copied, self._server.data_dir, symlinks=True)
        self.topic = self._started()
        self.topic.payloads[0] = payloads_of("kept", COPIED)

    def _started(self) -> Topic:
        self._server.start()
        return Topic(self._server, "shop", wire.connect(self._server.address))

    def close(self) -> None:
        self.topic.connection.close()
        self._server.stop()

    def send(self, text: str, count: int) -> None:
        payloads = payloads_of(text, count)
        self.topic.payloads.setdefault(0, []).extend(payloads)
        send(self.topic, payloads)

    def settled(self) -> Topic:
        settle(self.topic)
        return self.topic

    def restart(self) -> Topic:
        payloads = dict(self.topic.payloads)
        self.close()
        self.topic = self._started()
        self.topic.payloads = payloads
        return self.topic

    def put_back(self, others: int) -> Topic:
        """The copy, and other messages behind it."""
        self.close()
        shutil.rmtree(self._server.data_dir)
        shutil.copytree(self._copy, self._server.data_dir, symlinks=True)
        payloads = self.topic.payloads[0][:COPIED]
        self.topic = self._started()
        self.topic.payloads[0] = payloads
        self.send("other", others)
        return self.settled()


@pytest.fixture
def kept(tmp_path: Path, copied: Path) -> Iterator[Kept]:
    made = Kept(tmp_path, copied)
    made.send("read", READ)
    made.settled()
    yield made
    made.close()


def resumed(stream: Stream, topic: Topic, **more: str) -> Stream:
    """A query that begins anew at the checkpoint of another one."""
    found = Stream(topic.options(**EARLIEST, **more))
    found.at = stream.at
    return found


def test_a_checkpoint_of_before_a_roll_back_is_data_loss(kept: Kept) -> None:
    old = Stream(kept.topic.options(**EARLIEST))
    assert set(old.run()) == kept.topic.rows()
    topic = kept.put_back(OTHERS)
    with pytest.raises(DataLossError, match="put back"):
        resumed(old, topic).run()


def test_a_roll_back_with_accepted_loss_is_read_from_its_earliest_message(kept: Kept) -> None:
    old = Stream(kept.topic.options(**EARLIEST))
    old.run()
    topic = kept.put_back(OTHERS)
    lenient = resumed(old, topic, failOnDataLoss="false")
    assert set(lenient.run()) == topic.rows()
    assert lenient.run() == []
    kept.send("more", 10)
    again = resumed(lenient, kept.settled())
    assert [row[1] for row in again.run()] == list(range(COPIED + OTHERS, COPIED + OTHERS + 10))


def test_a_roll_back_of_as_many_messages_is_read_from_its_earliest_message(kept: Kept) -> None:
    old = Stream(kept.topic.options(**EARLIEST))
    old.run()
    topic = kept.put_back(READ)
    assert set(resumed(old, topic, failOnDataLoss="false").run()) == topic.rows()
    with pytest.raises(DataLossError, match="put back"):
        resumed(old, topic).run()


def test_a_roll_back_that_ends_behind_the_copy_and_before_the_place_is_read_from_its_earliest_message(
    kept: Kept,
) -> None:
    """The checkpoint has a record of the copy, too, which is still there."""
    old = Stream(kept.topic.options(**EARLIEST))
    old.run(ReadMaxRows(COPIED // 2))
    old.run()
    topic = kept.put_back(READ // 2)
    with pytest.raises(DataLossError, match="put back"):
        resumed(old, topic).run()
    assert set(resumed(old, topic, failOnDataLoss="false").run()) == topic.rows()


def test_a_batch_that_is_planned_again_behind_a_roll_back_gives_no_row(kept: Kept) -> None:
    first = Stream(kept.topic.options(**EARLIEST))
    first.run()
    kept.send("last", 50)
    kept.settled()
    _, end = first.plan()
    topic = kept.put_back(OTHERS)
    assert first.at is not None
    with pytest.raises(DataLossError, match="put back"):
        resumed(first, topic).reader.partitions(first.at, end)
    lenient = resumed(first, topic, failOnDataLoss="false")
    assert lenient.reader.partitions(first.at, end) == []
    lenient.at = end
    assert set(lenient.run()) == topic.rows()


def test_a_roll_back_under_a_running_query_is_data_loss(kept: Kept) -> None:
    running = Stream(kept.topic.options(**EARLIEST))
    running.run()
    kept.put_back(OTHERS)
    with pytest.raises(DataLossError, match="put back"):
        running.run()


def archived(topic: Topic, root: Path) -> None:
    for job in archive.plan(source_of(topic), Target.parse(f"parquet:{root}", {}))[0]:
        job.run()


def test_an_archive_of_before_a_roll_back_is_data_loss_and_gives_no_row(kept: Kept, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archived(kept.topic, root)
    kept.send("last", 30)
    archived(kept.settled(), root)
    with_archive = {**EARLIEST, "archivePath": str(root)}
    assert set(everything(kept.topic.options(**with_archive))) == kept.topic.rows()
    topic = kept.put_back(OTHERS)
    with pytest.raises(DataLossError, match="put back"):
        everything(topic.options(**with_archive))
    assert set(everything(topic.options(**with_archive, failOnDataLoss="false"))) == topic.rows()
    with pytest.raises(DataLossError, match="put back"):
        Stream(topic.options(**with_archive)).run()
    assert set(Stream(topic.options(**with_archive, failOnDataLoss="false")).run()) == topic.rows()
    with pytest.raises(PipelineError, match="put back"):
        archived(topic, root)


@pytest.mark.parametrize("mode", ["auto", "cold"])
def test_a_query_of_any_mode_reads_no_archive_of_other_messages(kept: Kept, tmp_path: Path, mode: str) -> None:
    archived(kept.topic, tmp_path / "archive")
    topic = kept.put_back(OTHERS)
    end = json.dumps({"shop/rows": {"0": COPIED + READ - 100}})
    of_mode = {**EARLIEST, "archivePath": str(tmp_path / "archive"), "readMode": mode, "endingOffsets": end}
    with pytest.raises(DataLossError, match="put back"):
        everything(topic.options(**of_mode))


def test_an_archive_that_ends_behind_the_server_is_data_loss(kept: Kept, tmp_path: Path) -> None:
    """None of its files ends where the server has messages."""
    archived(kept.topic, tmp_path / "archive")
    topic = kept.put_back(READ // 2)
    with_archive = {**EARLIEST, "archivePath": str(tmp_path / "archive")}
    with pytest.raises(DataLossError, match="put back"):
        everything(topic.options(**with_archive))
    assert set(everything(topic.options(**with_archive, failOnDataLoss="false"))) == topic.rows()


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_archive_file_that_cannot_be_read_ends_no_query_that_needs_nothing_of_it(
    kept: Kept, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "archive"
    archived(kept.topic, root)
    if harm == "damaged":
        for each in root.rglob("*.parquet"):
            each.write_bytes(each.read_bytes()[:-100])
        with pytest.raises(archive_files.DamagedArchiveError):
            archived(kept.topic, root)
    else:  # between the listing and the look
        monkeypatch.setattr(archive_files, "last_of", lambda path: Path(f"{path}.gone").read_bytes())
    kept.send("more", OTHERS)
    behind = {"startingOffsets": json.dumps({"shop/rows": {"0": COPIED + READ}}), "archivePath": str(root)}
    rows = everything(kept.settled().options(**behind))
    assert set(rows) == {row for row in kept.topic.rows() if row[1] >= COPIED + READ}


def test_one_file_of_an_archive_is_opened_when_it_decides(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "archive"
    opened: list[str] = []
    last_of = archive_files.last_of

    def seen(path: str) -> Mark | None:
        opened.append(path)
        return last_of(path)

    monkeypatch.setattr(archive_files, "last_of", seen)
    for count in range(1, 4):
        archived(kept.topic, root)
        assert len([*root.rglob("*.parquet")]) == count
        opened.clear()
        everything(kept.topic.options(**EARLIEST, archivePath=str(root)))
        assert len(opened) == 1
        kept.send("more", READ)
        kept.settled()


def test_a_restart_and_more_messages_are_no_roll_back(kept: Kept) -> None:
    old = Stream(kept.topic.options(**EARLIEST))
    old.run()
    kept.restart()
    kept.send("more", 10)
    topic = kept.settled()
    assert [row[1] for row in resumed(old, topic).run()] == list(range(COPIED + READ, COPIED + READ + 10))


def test_a_checkpoint_of_an_earlier_version_goes_on(kept: Kept) -> None:
    old = Stream(kept.topic.options(**EARLIEST))
    old.run()
    assert old.at is not None
    for topic in old.at["topics"].values():
        topic["p"] = {number: place[:2] for number, place in topic["p"].items()}
    kept.send("more", 10)
    assert len(resumed(old, kept.settled()).run()) == 10


def test_marks_that_retention_has_deleted_are_told_in_one_line_and_the_query_goes_on(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    old = Stream(kept.topic.options(**EARLIEST))
    old.run()
    kept.send("more", 2000)
    topic = kept.settled()
    address = wire.identifier("shop") + wire.identifier("rows")
    topic.connection.request(DELETE_SEGMENTS, address + bytes(4) + (100).to_bytes(4, "little"))
    [bounds] = topic.bounds()
    assert bounds.first > COPIED + READ
    found = resumed(old, topic, failOnDataLoss="false").run()
    assert [row[1] for row in found] == list(range(bounds.first, bounds.end))
    assert sum("cannot be compared" in each.message for each in caplog.records) == 1


def test_a_checkpoint_keeps_the_last_record_and_those_of_eight_commits(kept: Kept) -> None:
    stream = Stream(kept.topic.options(**EARLIEST))
    stream.run()
    ends = [COPIED + READ]
    for _ in range(10):
        kept.send("more", 3)
        kept.settled()
        stream.run()
        ends.append(ends[-1] + 3)
    assert stream.at is not None
    [[_, following, marks]] = stream.at["topics"]["shop/rows"]["p"].values()
    assert following == ends[-1]
    assert [offset for offset, _ in marks] == [end - 1 for end in ends[-9:]]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("others", [OTHERS, READ // 2])
def test_a_table_of_before_a_roll_back_gets_no_other_rows(kept: Kept, tmp_path: Path, kind: str, others: int) -> None:
    """With `others` the server is behind the end of the table, or before it."""
    target = target_of(kind, tmp_path)
    assert archived_in(target, kept.topic) == COPIED + READ
    kept.send("last", 30)
    assert archived_in(target, kept.settled()) == 30
    kept.restart()
    kept.send("more", 10)
    assert archived_in(target, kept.settled()) == 10
    topic = kept.put_back(others)
    with pytest.raises(PipelineError, match="put back"):
        archived_in(target, topic)
    assert stored(target).num_rows == COPIED + READ + 40


def archived_in(target: Target, topic: Topic) -> int:
    """Rows that a run adds to a table."""
    results = [job.run() for job in archive.plan(source_of(topic), target)[0]]
    if results:
        archive.commit(target, results)
    return sum(each["rows"] for each in results)
