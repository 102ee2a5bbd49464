"""An archive of messages that are not all there: offsets that a manifest explains are written down and passed, in files
and in tables, and a reader of the archive learns which of them were lost. No Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from shardd.log import layout
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.spark import archive_times
from shardd.spark.archive_files import DamagedArchiveError, Footer
from shardd.spark.archive_listing import parse_file_name
from shardd.spark.loss import DataLossError
from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.audit import RangeAudit, plan
from tests.spark import direct
from tests.spark.support import Topic, source_of
from tests.spark.test_gaps import MESSAGES, directory_of, expected, start_again, starts_of, thin, topic

__all__ = ["topic"]


def run(topic: Topic, target: Target, **options: str) -> list[archive.ArchiveJob]:
    jobs = archive.plan(source_of(topic, **options), target)[0]
    results = [job.run() for job in jobs]
    if target.kind != "parquet" and results:
        archive.commit(target, results)
    return jobs


def sparse(topic: Topic) -> list[int]:
    """The offsets that are left."""
    topic.server.stop()
    left = thin(topic)
    start_again(topic)
    return left


def isolated(topic: Topic) -> int:
    """One message is damaged, and an operator has isolated it: its offset."""
    topic.server.stop()
    directory, start = directory_of(topic), starts_of(topic)[1]
    log = layout.segment_log(directory, start)
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    for view in diagnose_partition(directory):
        if view.damaged:
            isolate(directory, view.damaged)
    start_again(topic)
    return start


def of_archive(topic: Topic, root: Path, **options: str) -> list[direct.Row]:
    return direct.everything(topic.options(readMode="archive", archivePath=str(root), **options))


@pytest.mark.parametrize("cut", [{}, {"maxRecordsPerPartition": "600"}], ids=["whole", "cut"])
@pytest.mark.parametrize("files", [True, False], ids=["files", "server"])
def test_sparse_segments_are_archived_and_read_back(
    topic: Topic, tmp_path: Path, files: bool, cut: dict[str, str]
) -> None:
    left = sparse(topic)
    place = {"path": str(topic.server.data_dir)} if files else {}
    target = Target.parse(f"parquet:{tmp_path / 'archive'}", {})
    assert run(topic, target, **place, **cut)
    assert run(topic, target, **place, **cut) == [], "a second run has nothing to do"
    wanted = expected(topic, left)
    for verify in ("true", "false", "report"):
        assert of_archive(topic, tmp_path / "archive", verifyChecksums=verify) == wanted
    jobs, reports = plan(source_of(topic, **place), str(tmp_path / "archive"))
    found = [*reports, *(job.run() for job in jobs if isinstance(job, RangeAudit))]
    assert [each["first_faults"] for each in found if each["faults"]] == []


def test_a_cut_without_a_row_is_a_file_without_a_row(topic: Topic, tmp_path: Path) -> None:
    left = sparse(topic)
    target = Target.parse(f"parquet:{tmp_path}", {})
    for job in archive.plan(source_of(topic, maxRecordsPerPartition="2"), target)[0][:12]:
        job.run()
    found = [pq.read_metadata(path).num_rows for path in sorted(tmp_path.rglob("*.parquet"))]
    assert found == [sum(each in left for each in (at, at + 1)) for at in range(0, 24, 2)] and 0 in found
    run(topic, target)
    assert of_archive(topic, tmp_path) == expected(topic, left)


def test_a_table_gets_the_rows_and_passes_the_gaps(topic: Topic, tmp_path: Path) -> None:
    left = sparse(topic)
    target = Target.parse(f"delta:{tmp_path / 'table'}", {})
    run(topic, target, maxRecordsPerPartition="1000")
    table = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(table.column("offset").to_pylist()) == left
    assert all(not job.slice.end > job.slice.start for job in archive.plan(source_of(topic), target)[0])


def test_an_isolated_message_is_passed_and_told_by_the_archive(topic: Topic, tmp_path: Path) -> None:
    start = isolated(topic)
    root, wanted = tmp_path / "archive", expected(topic, [each for each in range(MESSAGES) if each != start])
    run(topic, Target.parse(f"parquet:{root}", {}), path=str(topic.server.data_dir))
    [file] = root.rglob("*.parquet")
    footer = Footer.of(pq.read_metadata(file))
    assert footer is not None and (footer.lost, footer.gaps) == (((start, start + 1),), ())
    with pytest.raises(DataLossError, match=f"offsets {start} to {start + 1}: .*lost before they were archived"):
        of_archive(topic, root)
    assert of_archive(topic, root, failOnDataLoss="false") == wanted
    jobs, _ = plan(source_of(topic), str(root))
    faults = {job.slice.pieces[0].place: job.run()["faults"] for job in jobs if isinstance(job, RangeAudit)}
    assert faults == {PieceOrigin.ARCHIVE: 0, PieceOrigin.SERVER: 1}


def test_the_server_alone_does_not_explain_what_is_isolated(topic: Topic, tmp_path: Path) -> None:
    start = isolated(topic)
    target = Target.parse(f"parquet:{tmp_path}", {})
    with pytest.raises(DataLossError, match=f"offsets {start} to {start + 1}"):
        run(topic, target)
    run(topic, target, failOnDataLoss="false")
    assert len(of_archive(topic, tmp_path, failOnDataLoss="false")) == MESSAGES - 1


def test_times_are_found_beside_files_without_a_row(tmp_path: Path) -> None:
    from tests.spark.lake import NAME, archive_file

    pieces = []
    for number in range(9):
        start = 100 * number
        path = archive_file(tmp_path, start, 100)
        if number % 3:
            table = pq.read_table(path).slice(0, 0)
            named = parse_file_name(path.name)
            assert named is not None
            footer = replace(Footer(NAME.stream, NAME.topic, *named, "run"), gaps=(named[2:],))
            pq.write_table(table.replace_schema_metadata(footer.encode([])), path)
        pieces.append(Piece(PieceOrigin.ARCHIVE, start, start + 100, str(path)))
    times = [archive_times.time_at(pieces, each) for each in (0, 350, 650)]
    assert [archive_times.offset_at(pieces, each or 0) for each in times] == [0, 350, 650]
    assert archive_times.offset_at(pieces, (archive_times.time_at(pieces, 399) or 0) + 1) == 600


def test_a_footer_that_explains_too_much_is_refused(topic: Topic, tmp_path: Path) -> None:
    sparse(topic)
    run(topic, Target.parse(f"parquet:{tmp_path}", {}))
    [file] = tmp_path.rglob("*.parquet")
    table = pq.read_table(file)
    footer = Footer.of(pq.read_metadata(file))
    assert footer is not None and footer.gaps
    pq.write_table(table.slice(1).replace_schema_metadata(footer.encode(list(footer.digests))), file)
    with pytest.raises(DamagedArchiveError, match="its name and its footer say"):
        of_archive(topic, tmp_path)
