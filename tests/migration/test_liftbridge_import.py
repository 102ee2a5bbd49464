"""Imports of Liftbridge directories: what is kept, what is refused, and what an interruption leaves."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardd.log.directory_info import read_being_imported
from shardd.log.manifest import read_manifest
from shardd.log.segment_reader import segment_starts
from shardd.metadata import births
from shardd.metadata.liftbridge import find_liftbridge
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.migration.errors import MigrationError
from shardd.migration.liftbridge.log import DamageKind, LogReader, SourceFile
from shardd.migration.liftbridge.report import Outcome
from shardd.protocol.limits import UNLIMITED
from shardd.server.errors import StartupError
from tests.migration import liftbridge_source as lb
from tests.migration.liftbridge_source import EPOCH_NS, Entry
from tests.migration.liftbridge_target import (
    OPTIONS,
    Message,
    begin,
    import_from,
    messages,
    partition_directory,
    topics,
)
from tests.unit.log_files import tree

DRY = replace(OPTIONS, dry_run=True)


def numbered(count: int, first: int = 0, subject: str = "in") -> list[Entry]:
    return [Entry(n, b"value %d" % n, subject=subject, timestamp_ns=EPOCH_NS + 1_000 * n) for n in range(first, count)]


def test_the_writer_of_these_tests_and_the_reader_agree_with_a_real_record(tmp_path: Path) -> None:
    assert lb.record(Entry(0, b"hello", b"k1", subject="orders.in.1")) == lb.EXAMPLE
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(lb.EXAMPLE)
    (record,) = LogReader(SourceFile(path, 0), 0, last=True).records()
    assert (record.offset, record.timestamp_ns, record.key, record.value) == (0, EPOCH_NS, b"k1", b"hello")
    assert record.headers == {"subject": b"orders.in.1", "reply": b""}


def test_offsets_keys_headers_subjects_and_times_are_kept(tmp_path: Path) -> None:
    long = b"h" * 300
    entries = [
        Entry(3, b"a", b"k", {"one": b"1", "empty": b"", "long": long}),
        Entry(4, b"", subject="in.other", reply="back"),
        Entry(9, None, timestamp_ns=EPOCH_NS + 500),
    ]
    lb.write_stream(
        tmp_path / "source", "orders", {3: entries[:2], 9: entries[2:]}, {0: [Entry(0, b"z", subject="in.1")]}
    )
    report = import_from(tmp_path / "source", tmp_path / "data", replace(OPTIONS, subjects={"orders": "in"}))
    assert [stream.outcome for stream in report.streams] == [Outcome.IMPORTED]
    us = EPOCH_NS // 1_000
    assert messages(tmp_path / "data", "orders") == [
        Message(3, us, b"a", b"k", {"one": b"1", "empty": b"", "long": long}, "in", ""),
        Message(4, us, b"", b"", {}, "in.other", "back"),
        Message(9, us, b"", b"", {}, "in", ""),
    ]
    assert messages(tmp_path / "data", "orders", 1, "in.1") == [Message(0, us, b"z", b"", {}, "in.1", "")]
    figures = report.streams[0].partitions[0]
    assert (figures.first_offset, figures.end_offset, figures.messages, figures.absent) == (3, 10, 3, 4)


def test_segments_are_sealed_and_what_has_gaps_says_so(tmp_path: Path) -> None:
    lb.write_stream(tmp_path / "source", "s", {0: [*numbered(20), *numbered(60, 40)]})
    import_from(tmp_path / "source", tmp_path / "data", replace(OPTIONS, segment_bytes_max=1_000))
    directory = partition_directory(tmp_path / "data", "s")
    starts = segment_starts(directory)
    manifests = [read_manifest(directory, start) for start in starts]
    assert len(starts) == 3 and all(manifests)
    assert [each.sealed is not None for each in manifests if each] == [True] * (len(starts) - 1) + [False]
    assert [start for start, each in zip(starts, manifests, strict=True) if each and each.sparse] == [
        max(start for start in starts if start < 40)
    ]
    assert [message.offset for message in messages(tmp_path / "data", "s")] == [*range(20), *range(40, 60)]


def test_streams_are_known_to_the_metadata_and_keep_everything(tmp_path: Path) -> None:
    lb.write_stream(tmp_path / "source", "s", {0: numbered(5, subject="a.b")})
    (tmp_path / "source/liftbridge").write_bytes(b"\x0a\x05node1")
    import_from(tmp_path / "source", tmp_path / "data")
    state = load_state(tmp_path / "data" / FILE_NAME)
    stream, topic = find_liftbridge(state, "s") or (None, None)
    assert stream and topic and topic.liftbridge and state.liftbridge.server_id == "node1"
    assert (topic.liftbridge.name, topic.liftbridge.subject) == ("s", "a.b")
    assert dict(topic.liftbridge.settings)["retentionMaxAge"] == 0
    assert topic.message_expiry_us == UNLIMITED and topic.settings["retention"] == "on"


def test_an_import_gives_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the number of its history, which is drawn."""
    monkeypatch.setattr(births, "drawn_index", lambda index: index + (7 << 32))
    lb.write_stream(tmp_path / "source", "s", {0: numbered(50)})
    for name in ("one", "two"):
        import_from(tmp_path / "source", tmp_path / name)
    assert tree(partition_directory(tmp_path / "one", "s")) == tree(partition_directory(tmp_path / "two", "s"))


def test_subjects_come_from_options_messages_or_the_name(tmp_path: Path) -> None:
    source = tmp_path / "source"
    lb.write_stream(source, "told", {0: numbered(2)})
    lb.write_stream(source, "seen", {0: numbered(2, subject="a.b")}, {0: numbered(2, subject="a.b.1")})
    lb.write_stream(source, "wild", {0: [*numbered(1, subject="w.x"), Entry(1, b"", subject="w.*")]})
    lb.write_stream(source, "several", {0: [*numbered(1, subject="x"), Entry(1, b"", subject="y")]})
    lb.write_stream(source, "long", {0: numbered(1, subject="x" * 5_000)})
    lb.write_stream(source, "empty", {0: []})
    report = import_from(source, tmp_path / "data", replace(DRY, subjects={"told": "t.>"}))
    assert {each.name: (each.subject, each.subject_from) for each in report.streams} == {
        "told": ("t.>", "option"),
        "seen": ("a.b", "messages"),
        "wild": ("w.*", "messages"),
        "several": ("several", "name"),
        "long": ("long", "name"),
        "empty": ("empty", "name"),
    }
    with pytest.raises(MigrationError, match="no subject"):
        import_from(source, tmp_path / "data", replace(DRY, subjects={"told": "a..b"}))


def test_a_dry_run_reads_everything_and_writes_nothing(tmp_path: Path) -> None:
    lb.write_stream(tmp_path / "source", "s", {0: numbered(7)})
    before = tree(tmp_path)
    report = import_from(tmp_path / "source", tmp_path / "data", DRY)
    assert report.streams[0].outcome is Outcome.CHECKED and report.streams[0].messages == 7
    assert tree(tmp_path) == before


def test_a_torn_tail_is_left_out_and_counted(tmp_path: Path) -> None:
    torn = lb.record(Entry(5, b"five"))[:-3]
    lb.write_partition(tmp_path / "source/streams/s/0", {0: numbered(5)}, tail=torn)
    flipped = bytearray(lb.record(Entry(5, b"five")))
    flipped[-1] ^= 1
    lb.write_partition(tmp_path / "source/streams/s/1", {0: numbered(5)}, tail=bytes(flipped))
    lb.write_partition(tmp_path / "source/streams/s/2", {0: numbered(5)}, tail=bytes(4_096))
    report = import_from(tmp_path / "source", tmp_path / "data")
    assert [each.torn_bytes for each in report.streams[0].partitions] == [len(torn), len(flipped), 4_096]
    assert [each.messages for each in report.streams[0].partitions] == [5, 5, 5]


def test_messages_behind_the_saved_high_watermark_are_kept_and_counted(tmp_path: Path) -> None:
    lb.write_partition(tmp_path / "source/streams/s/0", {0: numbered(5)}, watermark=2)
    report = import_from(tmp_path / "source", tmp_path / "data")
    assert report.streams[0].partitions[0].uncommitted == 2
    assert len(messages(tmp_path / "data", "s")) == 5


def damaged(source: Path, kind: DamageKind) -> None:
    """A stream `bad` that has this, and offsets 0 to 9 without it."""
    directory = lb.write_partition(source / "streams/bad/0", {0: numbered(5), 5: numbered(10, 5)})
    first, second = (directory / f"{base:020d}.log" for base in (0, 5))
    content = first.read_bytes()
    size = len(lb.record(numbered(1)[0]))
    if kind is DamageKind.CHECKSUM:
        first.write_bytes(content[: 3 * size - 1] + bytes([content[3 * size - 1] ^ 1]) + content[3 * size :])
    elif kind is DamageKind.TRUNCATED:
        first.write_bytes(content[:-4])
    elif kind is DamageKind.OFFSET:
        first.write_bytes(content + lb.record(Entry(1, b"again")))
    elif kind is DamageKind.FORMAT:
        wrong = bytearray(lb.record(Entry(5, b"")))
        wrong[32] = 2
        wrong[28:32] = lb.crc32c(bytes(wrong[32:])).to_bytes(4, "big")
        first.write_bytes(content + bytes(wrong))
    elif kind is DamageKind.MISSING:
        (directory / "replication-offset-checkpoint").write_text("12")
    elif kind is DamageKind.UNREADABLE:
        first.unlink()
        os.mkfifo(first)
    else:
        second.write_bytes(b"".join(lb.record(Entry(n, lb.sealed(b"x", b"m" * 16, b"d" * 32))) for n in range(5, 10)))
        first.unlink()


@pytest.mark.parametrize("kind", list(DamageKind))
def test_damage_has_a_kind_and_nothing_of_the_stream_is_stored(kind: DamageKind, tmp_path: Path) -> None:
    damaged(tmp_path / "source", kind)
    lb.write_stream(tmp_path / "source", "good", {0: numbered(3)})
    report = import_from(tmp_path / "source", tmp_path / "data")
    (left,) = report.left_out
    assert left.source == "bad" and [each.kind for each in left.damage] == [kind] and left.why
    assert topics(tmp_path / "data") == ["good"]


@pytest.mark.parametrize(
    ("kind", "kept", "end"),
    [
        (DamageKind.CHECKSUM, [0, 1, *range(5, 10)], 10),
        (DamageKind.TRUNCATED, [*range(4), *range(5, 10)], 10),
        (DamageKind.OFFSET, [*range(10)], 10),
        (DamageKind.MISSING, [*range(10)], 13),
    ],
)
def test_salvage_takes_what_is_whole_and_gives_no_offset_twice(
    kind: DamageKind, kept: list[int], end: int, tmp_path: Path
) -> None:
    damaged(tmp_path / "source", kind)
    report = import_from(tmp_path / "source", tmp_path / "data", replace(OPTIONS, salvage=True))
    figures = report.streams[0].partitions[0]
    assert [each.kind for each in figures.damage] == [kind] and figures.end_offset == end
    assert [message.offset for message in messages(tmp_path / "data", "bad")] == kept


def test_encrypted_values_are_opened_and_only_with_their_key(tmp_path: Path) -> None:
    master, first, second = b"0123456789abcdef", b"1" * 32, b"2" * 32
    values = [b"one", b"", b"three" * 100]
    entries = [Entry(n, lb.sealed(value, master, second if n else first), b"key") for n, value in enumerate(values)]
    source = tmp_path / "source"
    lb.write_stream(source, "secret", {0: entries})
    lb.write_stream(source, "open", {0: [Entry(0, b"(" + b"a" * 200)]})
    report = import_from(source, tmp_path / "data", master=master)
    assert {each.name: each.partitions[0].encrypted for each in report.streams} == {"open": False, "secret": True}
    assert [(message.value, message.key) for message in messages(tmp_path / "data", "secret")] == [
        (value, b"key") for value in values
    ]
    for other in (None, b"f" * 32):
        (left,) = import_from(source, tmp_path / "other", DRY, other).left_out
        assert left.name == "secret"
    plain = import_from(source, tmp_path / "other", replace(OPTIONS, plain=frozenset({"secret"})))
    assert not plain.left_out and messages(tmp_path / "other", "secret")[0].value == entries[0].value


def test_one_value_that_does_not_open_is_damage(tmp_path: Path) -> None:
    master, key = b"m" * 32, b"k" * 32
    good = [lb.sealed(b"value", master, key) for _ in range(3)]
    entries = [Entry(0, good[0]), Entry(1, good[1][:-1] + bytes([good[1][-1] ^ 1])), Entry(2, good[2])]
    lb.write_stream(tmp_path / "source", "s", {0: entries})
    (left,) = import_from(tmp_path / "source", tmp_path / "data", DRY, master).left_out
    assert (left.damage[0].kind, left.damage[0].offset) == (DamageKind.SEALED, 1)


def test_names_that_lead_elsewhere_or_cannot_be_here_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    lb.write_stream(source, "a", {0: numbered(1)})
    lb.write_stream(source, "a/0/b", {0: numbered(1)})
    lb.write_stream(source, "with space", {0: numbered(1)})
    lb.write_stream(source, "__activity", {0: numbered(1)})
    lb.write_partition(source / "streams" / os.fsdecode(b"\xff") / "0", {0: numbered(1)})
    (source / "streams/high/1000").mkdir(parents=True)
    lb.write_partition(source / "streams/high/1000", {0: numbered(1)})
    report = import_from(source, tmp_path / "data", replace(OPTIONS, names={"with space": "with-space"}))
    assert topics(tmp_path / "data") == ["a", "with-space"]
    why = {each.source: each.why for each in report.left_out}
    assert why.keys() == {"a/0/b", "__activity", os.fsdecode(b"\xff"), "high"} and all(why.values())


def test_links_are_not_followed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    lb.write_stream(source, "a", {0: numbered(1)})
    (source / "streams/b").symlink_to("a")
    with pytest.raises(MigrationError, match="symbolic link"):
        import_from(source, tmp_path / "data", DRY)
    (source / "streams/b").unlink()
    log = source / "streams/a/0" / f"{0:020d}.log"
    log.rename(tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MigrationError, match="symbolic link"):
        import_from(source, tmp_path / "data", DRY)


def test_a_source_in_use_a_directory_in_use_and_one_inside_the_other_are_refused(tmp_path: Path) -> None:
    import fcntl

    source, data = tmp_path / "source", tmp_path / "data"
    lb.write_stream(source, "a", {0: numbered(1)})
    (source / "raft").mkdir()
    with (source / "raft" / "raft.db").open("wb") as database:
        fcntl.flock(database, fcntl.LOCK_EX)
        with pytest.raises(MigrationError, match="in use"):
            import_from(source, data)
    for wrong in (source, source / "below", tmp_path):
        with pytest.raises(MigrationError, match="side by side"):
            import_from(source, wrong, DRY)
    with pytest.raises(MigrationError, match="no data directory of Liftbridge"):
        import_from(tmp_path / "nothing", data, DRY)
    data.mkdir(exist_ok=True)
    with (data / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StartupError, match="in use"):
            import_from(source, data)


def test_a_stream_that_is_there_already_stays_and_the_others_come(tmp_path: Path) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    lb.write_stream(source, "a", {0: numbered(1)})
    import_from(source, data)
    lb.write_stream(source, "b", {0: numbered(2)})
    report = import_from(source, data)
    assert [(each.source, each.outcome) for each in report.streams] == [
        ("a", Outcome.LEFT_OUT),
        ("b", Outcome.IMPORTED),
    ]
    assert topics(data) == ["a", "b"] and len(messages(data, "b")) == 2


def test_missing_partitions_are_damage(tmp_path: Path) -> None:
    lb.write_partition(tmp_path / "source/streams/s/1", {0: numbered(1)})
    (left,) = import_from(tmp_path / "source", tmp_path / "data", DRY).left_out
    assert left.damage[0].kind is DamageKind.MISSING


def killed_at(event: int, source: Path, data: Path) -> bool:
    """Imports in a process that is killed at its n-th look at a file; False: it came to its end."""
    process = os.fork()
    if not process:
        seen = 0

        def count(name: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if name in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
                seen += 1
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            import_from(source, data)
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status)


def test_an_import_that_is_killed_anywhere_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    lb.write_stream(
        source, "a", {0: numbered(5)}, {3: [Entry(3, b"x", subject="in.1"), Entry(9, b"y", subject="in.1")]}
    )
    lb.write_stream(source, "b", {0: numbered(2)})
    begin(tmp_path / "started")
    import_from(source, tmp_path / "whole")
    wanted = {name: messages(tmp_path / "whole", name) for name in "ab"}
    event, guarded = 1, 0
    while True:
        data = tmp_path / f"data-{event}"
        shutil.copytree(tmp_path / "started", data)
        if not killed_at(event, source, data):
            break
        guarded += data.exists() and read_being_imported(data) is not None
        report = import_from(source, data)
        left = {each.source for each in report.left_out}
        assert left <= {"a", "b"} and (not left or left == {"a", "b"}), "a finished import was done in part"
        assert topics(data) == ["a", "b"] and read_being_imported(data) is None
        assert {name: messages(data, name) for name in "ab"} == wanted
        assert not (data / "streams/liftbridge.import").exists()
        state = load_state(data / FILE_NAME)
        assert len(state.streams) == 1 and len(state.users) == 1
        event += 9
    assert event > 100 and guarded > 3


def test_partitions_that_are_ready_are_not_read_again_unless_they_changed(tmp_path: Path) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    lb.write_stream(source, "a", {0: numbered(5)}, {0: []})
    lb.write_stream(source, "b", {0: numbered(2)})
    event = 1
    while (data / "streams/liftbridge.import").exists() is False or not list(data.glob("streams/*/*/*.json")):
        assert killed_at(event, source, data) and event < 500
        event += 7
    again = import_from(source, data).again
    assert again >= 1
