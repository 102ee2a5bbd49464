"""Segments that have no message for some of their offsets: what the source reads from the server and from files, what
an audit says of them, and that nothing passes over what is not explained."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import Manifest, write_manifest
from shardd.protocol.record_layout import LAYOUT_SPARSE
from shardd.spark.loss import DataLossError
from shardd.spark.pipelines.audit import SegmentAudit
from shardd.spark.positions import TopicName
from tests.spark import direct
from tests.spark.support import Topic, settle
from tests.support import wire
from tests.support.server import Server
from tests.unit import log_files

ENV = {"SHARDD_SYSTEM_SEGMENT_SIZE": "16 KiB", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "100 ms"}
MESSAGES = 6000


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Server(tmp_path / "data", env=ENV) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "rows", 1)
            made = Topic(server, "s", connection)
            made.send(0, MESSAGES)
            settle(made)
        yield made


def directory_of(topic: Topic) -> Path:
    return layout.partition_directory(topic.server.data_dir, 0, 0, 0)


def start_again(topic: Topic) -> None:
    """What a restarted owner found counts as on the device from its next sync on: the source reads up to there."""
    topic.server.start()
    settle(topic)


def starts_of(topic: Topic) -> list[int]:
    return sorted(int(path.stem) for path in directory_of(topic).glob("*.log"))


def thin_segment(directory: Path, start: int, end: int) -> set[int]:
    """It loses two of three messages; the offsets that are left."""
    incarnation = read_incarnation(directory)
    assert incarnation is not None
    index = layout.segment_index(directory, start).read_bytes()
    ends = [int.from_bytes(index[at + 4 : at + 8], "little") for at in range(0, len(index), 16)]
    stored = log_files.Stored(start, layout.segment_log(directory, start).read_bytes(), index, [0, *ends])
    thinned = log_files.thinned(stored, list(range(start + 1, end, 3)))
    log_files.write(directory, thinned, incarnation=incarnation)
    write_manifest(directory, log_files.manifest_of(thinned, end, incarnation=incarnation))
    return set(range(start + 1, end, 3))


def thin(topic: Topic) -> list[int]:
    """Every second sealed segment loses two of three messages, with a stopped server; the offsets that are left."""
    directory, starts = directory_of(topic), starts_of(topic)
    assert len(starts) > 3
    left = set(range(MESSAGES))
    for start, end in list(pairwise(starts))[::2]:
        left -= set(range(start, end)) - thin_segment(directory, start, end)
    return sorted(left)


def expected(topic: Topic, left: list[int]) -> list[direct.Row]:
    return [(0, offset, topic.payloads[0][offset]) for offset in left]


def test_rows_of_sparse_segments_come_from_the_server_and_from_files(topic: Topic) -> None:
    topic.server.stop()
    left = thin(topic)
    start_again(topic)
    layouts = [each.layout for each in topic.bounds()[0].segments]
    assert layouts[:3] == [LAYOUT_SPARSE, 0, LAYOUT_SPARSE] and layouts[-1] == 0
    wanted = expected(topic, left)
    assert direct.everything(topic.options()) == wanted
    assert direct.everything(topic.options(**{"poll.maxBytes": "4 KiB"})) == wanted
    path = str(topic.server.data_dir)
    assert direct.everything(topic.options(path=path)) == wanted
    end = max(each.end for each in topic.bounds()[0].segments if each.sealed)
    sealed = [each for each in wanted if each[1] < end]
    assert direct.everything(topic.options(path=path, readMode="cold")) == sealed
    small = topic.options(path=path, maxRecordsPerPartition="100")
    assert direct.everything(small) == wanted


def test_an_audit_finds_sparse_segments_whole_and_damage_in_them(topic: Topic) -> None:
    topic.server.stop()
    thin(topic)
    directory, starts = directory_of(topic), starts_of(topic)
    incarnation = read_incarnation(directory)
    assert incarnation is not None
    log = layout.segment_log(directory, starts[0])
    job = SegmentAudit(TopicName("s", "rows"), 0, incarnation, starts[0], starts[1], str(log))
    assert (job.run()["faults"], job.run()["rows"]) == (0, len(range(starts[0] + 1, starts[1], 3)))
    content = log.read_bytes()
    second = 64 + len(topic.payloads[0][1])  # where the record of offset 4 begins
    for at in (0, 24, 31, 66):  # its checksum, both ends of its offset, its payload
        log.write_bytes(content[: second + at] + bytes([content[second + at] ^ 1]) + content[second + at + 1 :])
        fault = job.run()["first_faults"][0]
        assert "offset 4 fails its checksum" in fault or "where offset 2 belongs" in fault, fault
        start_again(topic)
        with pytest.raises((DataLossError, ValueError)):
            direct.everything(topic.options(path=str(topic.server.data_dir), readMode="cold"))
        topic.server.stop()
    log.write_bytes(content[:second])  # whole records only: the manifest knows how many there were
    assert job.run()["faults"] > 0
    log.write_bytes(content)
    layout.segment_manifest(directory, starts[0]).unlink()  # nothing explains what is missing
    assert job.run()["faults"] > 0


def test_isolated_messages_are_a_loss_in_files_as_they_are_at_the_server(topic: Topic) -> None:
    topic.server.stop()
    directory, start = directory_of(topic), starts_of(topic)[1]
    log = layout.segment_log(directory, start)
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    content[24] ^= 1  # its offset, too
    log.write_bytes(content)
    for view in diagnose_partition(directory):
        if view.damaged:
            isolate(directory, view.damaged)
    start_again(topic)
    wanted = expected(topic, [each for each in range(MESSAGES) if each != start])
    for more in ({}, {"path": str(topic.server.data_dir)}):
        with pytest.raises(DataLossError, match=f"offsets {start} to {start + 1}"):
            direct.everything(topic.options(**more))
        assert direct.everything(topic.options(failOnDataLoss="false", **more)) == wanted


def test_a_gap_that_no_manifest_explains_is_no_gap(topic: Topic) -> None:
    """The manifest of a sparse segment is exchanged for one that says nothing."""
    topic.server.stop()
    thin(topic)
    directory, start = directory_of(topic), starts_of(topic)[0]
    incarnation = read_incarnation(directory)
    assert incarnation is not None
    start_again(topic)
    write_manifest(directory, Manifest(incarnation, start))
    with pytest.raises((DataLossError, ValueError)):
        direct.everything(topic.options(path=str(topic.server.data_dir)))
