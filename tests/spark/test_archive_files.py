"""Files of a Parquet archive without Spark: their names, what makes one whole, and how one comes to be there."""

from __future__ import annotations

import errno
import itertools
import os
import string
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardd.spark import archive_files, archive_listing
from shardd.spark.archive_files import DamagedArchiveError, Footer
from shardd.spark.archive_listing import ArchiveConflictError, escape, file_name, unescape
from shardd.spark.decode import Verify
from shardd.spark.pipelines import archive_publish
from shardd.spark.positions import OptionError, TopicName
from shardd.spark.sinks.files import WrittenFile
from shardd.spark.sinks.tables import Step
from tests.spark.lake import NAME, NUMBERS, archive_file, archived, table_of

# ---- names ----

HOSTILE = (
    *(
        ".",
        "..",
        "...",
        "/",
        "../..",
        "a/b",
        "a/../b",
        "a\0b",
        "%2E",
        "%2E%2E",
        ".%2E",
        "~",
        "-",
        "_staging",
        " ",
        "\n",
    ),
    *("ä", "a\u0308", "Ä", "ß", "ﬀ", "A", "a", "Shop", "shop", "a" * 255, "a" * 256, "ä" * 127, "ä" * 127 + "a"),
    *("ä" * 126 + "b", "%h" + "0" * 64, "/" * 255, "/" * 254 + ".", "con", "x.parquet", "\u202e", "😀" * 63),
)


def test_no_two_names_share_a_directory_and_none_leaves_the_root(tmp_path: Path) -> None:
    names = {*HOSTILE, *("".join(each) for n in (1, 2, 3) for each in itertools.product("./%2E\0aA_", repeat=n))}
    found = {name: escape(name) for name in names}
    assert len(set(found.values())) == len(names)
    root = tmp_path / "a" / "root"
    for name, directory in found.items():
        assert "/" not in directory and "\0" not in directory and directory not in (".", "..")
        assert 0 < len(directory.encode()) <= 255
        assert unescape(directory) in (name, None)
        made = Path(archive_listing.topic_path(str(root), TopicName(name, name)))
        assert made.parent.parent == root and os.path.realpath(made) == str(made)
    for name in ("..", "/" * 255, "ä" * 127):
        Path(archive_listing.topic_path(str(root), TopicName(name, name))).mkdir(parents=True)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_names_of_earlier_archives_are_the_same() -> None:
    from urllib.parse import quote

    for name in ("shop", "a b", "ä/ö", "x" * 255, string.printable[:80], "a.b", ".hidden", "...", "_x"):
        assert escape(name) == quote(name, safe="")


def test_a_file_outside_of_its_topic_is_not_found(tmp_path: Path) -> None:
    """A stream called `..` has an archive of its own, whatever stands one level above."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / file_name(0, 5, 0, 10)).touch()
    assert archive_listing.find(str(tmp_path / "archive"), TopicName("..", "orders"), 0, 5) == []


# ---- what makes a file whole ----


def rows_of(path: Path, *names: str, verify: Verify = Verify.STOP, start: int = 0, end: int = 1 << 40) -> pa.Table:
    wanted = names or ("offset",)
    batches = archive_files.read(
        str(path), wanted, stream=NAME.stream, topic=NAME.topic, key_header=None, start=start, end=end, verify=verify
    )
    return pa.Table.from_batches(list(batches))


@pytest.mark.parametrize("footer", [True, False], ids=["", "earlier version"])
def test_a_whole_file_gives_exactly_the_rows_asked_for(tmp_path: Path, footer: bool) -> None:
    path = archive_file(tmp_path, 100, 1000, footer=footer, group_rows=300)
    for start, end in ((0, 2000), (100, 1100), (399, 401), (650, 650), (700, 1099), (1099, 1100)):
        for verify in Verify:
            wanted = list(range(max(start, 100), min(end, 1100)))
            if not wanted:
                continue
            found = rows_of(path, "offset", "value", "checksumOk", start=start, end=end, verify=verify)
            assert found.column("offset").to_pylist() == wanted
            assert (
                found.column("value").to_pylist()
                == archived(100, 1000).column("value").to_pylist()[wanted[0] - 100 : wanted[-1] - 99]
            )
            assert all(found.column("checksumOk").to_pylist())


def exchange(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    index = table.schema.get_field_index(column)
    values = table.column(column).to_pylist()
    values[row] = value
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


def sealed_anew(table: pa.Table, row: int, value: bytes) -> pa.Table:
    """Another value, and the checksum that fits to it."""
    from tests.spark.records import Row

    old = {name: table.column(name)[row].as_py() for name in ("offset", "checksum")}
    made = Row(old["offset"], value, timestamp_us=1000 * old["offset"])
    assert not table.column("headersRaw")[row].as_py()
    return exchange(exchange(table, "value", row, value), "checksum", row, made.checksum())


ALTERED: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "half the rows": (lambda t: t.slice(0, 500), "has 500 rows, but its name says 1000"),
    "no rows": (lambda t: t.slice(0, 0), "has 0 rows"),
    "a row twice": (
        lambda t: pa.concat_tables([t.slice(0, 501), t.slice(500, 499)]),
        "offset 600 stands where offset 601",
    ),
    "rows exchanged": (lambda t: pa.concat_tables([t.slice(500), t.slice(0, 500)]), "offset 600 stands where"),
    "a forged value": (lambda t: exchange(t, "value", 17, b"forged"), "offset 117 fails its checksum"),
    "a forged header": (lambda t: exchange(t, "headersRaw", 17, b"forged"), "offset 117 fails its checksum"),
    "another id": (lambda t: exchange(t, "id", 17, b"0123456789abcdef"), "offset 117 fails its checksum"),
    "a short id": (lambda t: exchange(t, "id", 17, b"0"), "an id has not 16 bytes"),
    "another time": (lambda t: exchange(t, "timestamp", 999, 5), "offset 1099 fails its checksum"),
    "a null": (lambda t: exchange(t, "value", 3, None), "the column 'value' has nulls"),
}


@pytest.mark.parametrize("name", ALTERED)
@pytest.mark.parametrize("footer", [True, False], ids=["", "earlier version"])
def test_an_incomplete_or_forged_file_is_refused(tmp_path: Path, name: str, footer: bool) -> None:
    """Whatever columns are read: the offset alone, or all."""
    alter, said = ALTERED[name]
    path = archive_file(tmp_path, 100, 1000, rows=alter(archived(100, 1000)), footer=footer)
    for columns in (("offset",), ("offset", "value", "headers", "key")):
        with pytest.raises(DamagedArchiveError, match=f"{path.name} is damaged: .*{said}"):
            rows_of(path, *columns)


@pytest.mark.parametrize("name", ["half the rows", "a row twice", "rows exchanged"])
def test_missing_rows_are_refused_without_verified_checksums_too(tmp_path: Path, name: str) -> None:
    alter, said = ALTERED[name]
    path = archive_file(tmp_path, 100, 1000, rows=alter(archived(100, 1000)))
    for verify in (Verify.NO, Verify.REPORT):
        with pytest.raises(DamagedArchiveError, match=said):
            rows_of(path, verify=verify)


def test_a_forged_value_is_reported_when_that_is_asked_for(tmp_path: Path) -> None:
    path = archive_file(tmp_path, 100, 1000, rows=ALTERED["a forged value"][0](archived(100, 1000)), group_rows=10)
    found = rows_of(path, "offset", "checksumOk", verify=Verify.REPORT).to_pylist()
    assert [row["offset"] for row in found if not row["checksumOk"]] == [117] and len(found) == 1000


def test_a_record_that_was_exchanged_with_its_checksum_fails_the_digest(tmp_path: Path) -> None:
    """Rows and record checksums fit; they are not those that were written."""
    whole = archived(100, 1000)
    path = archive_file(tmp_path, 100, 1000)
    pq.write_table(sealed_anew(whole, 18, b"forged"), path)
    assert rows_of(path).num_rows == 1000, "what the record alone cannot tell"
    footer = pq.ParquetFile(archive_file(tmp_path, 100, 1000)).metadata.metadata[archive_files.FOOTER]
    forged = sealed_anew(whole, 18, b"forged")
    pq.write_table(forged.replace_schema_metadata({archive_files.FOOTER: footer}), path)
    with pytest.raises(DamagedArchiveError, match=r"does not have the records that were written \(digest\)"):
        rows_of(path)


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    path = archive_file(tmp_path, 100, 1000)
    for name in (file_name(1, 5, 100, 1100), file_name(0, 6, 100, 1100), file_name(0, 5, 0, 1000)):
        moved = path.with_name(name)
        path.rename(moved)
        with pytest.raises(DamagedArchiveError, match="was written as offsets 100 to 1100 of partition 0"):
            rows_of(moved)
        moved.rename(path)
    with pytest.raises(DamagedArchiveError, match="of 'shop/orders', incarnation 5"):
        list(
            archive_files.read(
                str(path), ("offset",), stream="shop", topic="others", key_header=None, start=100, end=1100
            )
        )


@pytest.mark.parametrize("footer", [b"", b"{}", b"[1]", b'{"digests": 3}', b"\xff"])
def test_a_broken_footer_is_refused(tmp_path: Path, footer: bytes) -> None:
    path = archive_file(tmp_path, 100, 10)
    pq.write_table(archived(100, 10).replace_schema_metadata({archive_files.FOOTER: footer}), path)
    with pytest.raises(DamagedArchiveError, match="its footer cannot be read"):
        rows_of(path)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = archive_file(tmp_path, 100, 1000)
    content = path.read_bytes()
    for size in (0, 3, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DamagedArchiveError, match=path.name):
            rows_of(path)


# ---- coverage ----


def history(root: Path) -> archive_listing.History:
    return archive_listing.list_topic(str(root), NAME)[0, 5]


def test_names_tell_what_is_missing_and_what_is_there_twice(tmp_path: Path) -> None:
    for start, count in ((100, 100), (200, 100), (400, 100)):
        archive_file(tmp_path, start, count)
    assert history(tmp_path).missing(600) == [(300, 400), (500, 600)], "an archive of earlier versions begins anywhere"
    archive_publish.mark(str(tmp_path), NAME, 0, 5, 0, 50)
    assert history(tmp_path).missing(500) == [(50, 100), (300, 400)]
    archive_publish.mark(str(tmp_path), NAME, 0, 5, 300, 400)
    assert history(tmp_path).missing(500) == [(50, 100)] and history(tmp_path).doubled() == []
    archive_file(tmp_path, 150, 100)
    archive_file(tmp_path, 450, 10)
    assert history(tmp_path).doubled() == [(150, 200), (200, 250), (450, 460)]


# ---- how a file comes to be there ----


def publish(root: Path, start: int, count: int, run: str = "mine") -> WrittenFile:
    footer = Footer(NAME.stream, NAME.topic, 0, 5, start, start + count, run)

    def write(_: object, path: str) -> WrittenFile:
        table = archived(start, count)
        pq.write_table(
            table.replace_schema_metadata(footer.encode([archive_files.digest(table.column("checksum"))])), path
        )
        return WrittenFile(path, Path(path).stat().st_size, count)

    return archive_publish.publish(str(root), footer, write)


def test_archive_files_of_two_runs_never_overlap(tmp_path: Path) -> None:
    first = publish(tmp_path, 0, 100)
    assert publish(tmp_path, 0, 100) == first, "the same task again finds its file"
    for start, count in ((0, 100), (0, 130), (50, 10), (99, 1), (50, 200)):
        with pytest.raises(ArchiveConflictError, match="were archived by another run meanwhile"):
            publish(tmp_path, start, count, run="other")
    assert publish(tmp_path, 100, 50, run="other").rows == 50
    names = sorted(each.name for each in Path(archive_listing.topic_path(str(tmp_path), NAME)).iterdir())
    assert [each for each in names if not each.startswith("_")] == [file_name(0, 5, 0, 100), file_name(0, 5, 100, 150)]


def without_links(source: object, target: object) -> None:
    raise PermissionError(errno.EPERM, "no hard links here")


def test_files_come_without_hard_links_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", without_links)
    assert publish(tmp_path, 0, 100).rows == 100
    with pytest.raises(ArchiveConflictError):
        publish(tmp_path, 50, 100, run="other")
    assert [each.end for each in history(tmp_path).files] == [100] and not list(tmp_path.rglob("*.tmp"))
    sink = table_of("parquet", tmp_path)
    assert sink.commit([], NUMBERS, (Step("first", 0),))
    with pytest.raises(OptionError, match="belongs to the query first"):
        sink.commit([], NUMBERS, (Step("second", 1),))


def test_no_planted_link_is_followed(tmp_path: Path) -> None:
    """In a directory that others may write to: neither by a lock nor by a record of a gap."""
    directory = Path(archive_listing.topic_path(str(tmp_path), NAME))
    directory.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("content")
    for name in (file_name(0, 5, 0, 10, "gap"), archive_publish.ARCHIVER_LOCK, archive_publish.PUBLISH_LOCK):
        (directory / name).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        archive_publish.mark(str(tmp_path), NAME, 0, 5, 0, 10)
    with pytest.raises(OSError, match="symbolic links"), archive_publish.alone(str(tmp_path), NAME):
        pass
    with pytest.raises(OSError, match="symbolic links"):
        publish(tmp_path, 0, 100)
    assert precious.read_text() == "content"


def test_a_file_that_came_while_another_was_written_is_not_doubled(tmp_path: Path) -> None:
    """Between the first look and the name: what a task of a driver that was killed may do."""
    footer = Footer(NAME.stream, NAME.topic, 0, 5, 0, 130, "late")

    def write(_: object, path: str) -> WrittenFile:
        publish(tmp_path, 0, 100)
        Path(path).write_bytes(b"whole")
        return WrittenFile(path, 5, 130)

    with pytest.raises(ArchiveConflictError):
        archive_publish.publish(str(tmp_path), footer, write)
    assert [each.end for each in history(tmp_path).files] == [100]
    assert not list(tmp_path.rglob("*.tmp")), "nothing is left of the attempt"


def test_a_second_archiver_of_a_topic_is_told(tmp_path: Path) -> None:
    with archive_publish.alone(str(tmp_path), NAME):
        with archive_publish.alone(str(tmp_path), TopicName("shop", "others")):
            pass
        with (
            pytest.raises(ArchiveConflictError, match="another run archives 'shop/orders'"),
            archive_publish.alone(str(tmp_path), NAME),
        ):
            pass
    with archive_publish.alone(str(tmp_path), NAME):
        pass
