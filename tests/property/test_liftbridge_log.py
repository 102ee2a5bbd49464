"""Log files of Liftbridge with bytes that are wrong: what is read is what was written, and the rest is told."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from shardd.migration.liftbridge.log import DamagedError, DamageKind, LogReader, SourceFile, SourceRecord
from tests.migration import liftbridge_source as lb
from tests.migration.liftbridge_source import Entry

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
ENTRIES = st.lists(
    st.builds(
        lambda gap, value, key, headers: (gap, value, key, headers),
        st.integers(0, 3),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=8),
        st.dictionaries(TEXTS.filter(lambda name: name not in ("subject", "reply")), st.binary(max_size=8), max_size=3),
    ),
    max_size=6,
)


def entries_of(drawn: list[tuple[int, bytes | None, bytes | None, dict[str, bytes]]]) -> list[Entry]:
    offset, found = 0, []
    for gap, value, key, headers in drawn:
        offset += gap
        found.append(Entry(offset, value, key, headers))
        offset += 1
    return found


def read(content: bytes, *, last: bool) -> tuple[list[SourceRecord], DamageKind | None, int]:
    """(records, why they end, bytes of a torn tail)"""
    with TemporaryDirectory() as directory:
        path = Path(directory) / f"{0:020d}.log"
        path.write_bytes(content)
        reader = LogReader(SourceFile(path, 0), 0, last=last)
        found = []
        try:
            for record in reader.records():
                found.append(record)
        except DamagedError as error:
            return found, error.damage.kind, reader.torn_bytes
        return found, None, reader.torn_bytes


def same(record: SourceRecord, entry: Entry) -> bool:
    own = {name: value for name, value in record.headers.items() if name not in ("subject", "reply")}
    return (record.offset, record.value, record.key, own, record.timestamp_ns) == (
        entry.offset, entry.value or b"", entry.key or b"", entry.headers, entry.timestamp_ns
    )  # fmt: skip


@given(ENTRIES)
def test_what_was_written_is_read(drawn: list[tuple[int, bytes | None, bytes | None, dict[str, bytes]]]) -> None:
    entries = entries_of(drawn)
    found, damage, torn = read(b"".join(map(lb.record, entries)), last=False)
    assert len(found) == len(entries) and all(map(same, found, entries))
    assert damage is None and not torn


@given(ENTRIES.filter(bool), st.data())
def test_a_changed_byte_or_a_cut_is_seen_and_no_other_message_is_read(
    drawn: list[tuple[int, bytes | None, bytes | None, dict[str, bytes]]], data: st.DataObject
) -> None:
    entries = entries_of(drawn)
    records = [lb.record(entry) for entry in entries]
    content = bytearray(b"".join(records))
    cut = data.draw(st.booleans())
    at = data.draw(st.integers(0, len(content) - 1))
    if cut:
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    last = data.draw(st.booleans())
    found, damage, torn = read(bytes(content), last=last)
    ends = [sum(map(len, records[: n + 1])) for n in range(len(records))]
    whole = sum(end <= at for end in ends)
    in_head = not cut and at - ([0, *ends][whole]) < 24  # offset, time and epoch lie before what the checksum is over
    assert all(map(same, found[:whole], entries))
    if not in_head:
        assert len(found) == whole
        assert damage is not None or torn or (cut and at in (0, *ends))
        assert last or not torn


@given(st.binary(max_size=200), st.booleans())
def test_bytes_that_are_no_log_give_no_message(content: bytes, last: bool) -> None:
    found, damage, torn = read(content, last=last)
    assert not found and (damage is not None or torn or not content)
