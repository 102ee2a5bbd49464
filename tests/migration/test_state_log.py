"""What a state log of Iggy adds up to, and that no bytes can do more than be refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.config.loader import load_settings
from shardd.metadata import State
from shardd.migration.errors import MigrationError
from shardd.migration.iggy_directory import import_directory
from shardd.migration.iggy_log import parse_log
from shardd.migration.iggy_model import build_model
from shardd.migration.iggy_records import make_records
from shardd.protocol.limits import UNLIMITED
from shardd.protocol.topic_setting_table import codec_of
from tests.migration import iggy_state as iggy
from tests.support.wire import identifier, str8

FIRST = iggy.log([
    iggy.ROOT, iggy.stream(0, "a"), iggy.topic(0, 0, "t", 2), iggy.group(0, 0, 0, "g"), iggy.user(1, "someone"),
    iggy.token("ci_token"), (303, identifier("a") + identifier("t")),
])  # fmt: skip


def state_of(changes: list[iggy.Change]) -> State:
    return make_records(build_model(parse_log(iggy.log(changes), "log"), "log"), "log", State()).state


def whole_import(data: bytes) -> None:
    """All that may come out is the one error."""
    try:
        make_records(build_model(parse_log(data, "log"), "log"), "log", State())
    except MigrationError as error:
        assert str(error).startswith("log")


def test_gaps_stay_and_the_highest_comes_first() -> None:
    deleted = [(203, identifier(number)) for number in (3, 1)]
    state = state_of([iggy.ROOT, *(iggy.stream(number, f"s{number}") for number in range(5)), *deleted])
    assert sorted(state.streams) == [0, 2, 4]
    assert state.free_stream_ids == (1, 3)
    assert sorted(state.stream_ids) == ["s0", "s2", "s4"]


def test_ids_as_a_restarted_iggy_gave_them() -> None:
    """Holes highest first, other than the last freed first of one run."""
    streams = [iggy.stream(number, f"s{number}") for number in range(4)]
    deleted = [(203, identifier(number)) for number in (2, 1)]
    state = state_of([iggy.ROOT, *streams, *deleted, iggy.stream(2, "again")])
    assert {number: stream.name for number, stream in state.streams.items()} == {0: "s0", 2: "again", 3: "s3"}


def test_a_stream_with_the_name_of_a_placeholder() -> None:
    state = state_of([iggy.ROOT, iggy.stream(0, "x"), iggy.stream(1, "unused-0"), (203, identifier(0))])
    assert {number: stream.name for number, stream in state.streams.items()} == {1: "unused-0"}


def test_topics_and_partitions() -> None:
    address = identifier(0) + identifier(0)
    changes = [
        iggy.ROOT,
        iggy.stream(0, "s"),
        iggy.topic(0, 0, "t", 2),
        (402, address + struct.pack("<I", 3)),
        (403, address + struct.pack("<I", 4)),
        (402, address + struct.pack("<I", 1)),
    ]
    topic = state_of(changes).streams[0].topics[0]
    assert [partition.id for partition in topic.partitions] == [0, 1]
    assert [partition.created_at_us - iggy.TIME_US for partition in topic.partitions] == [2, 5]
    assert (topic.message_expiry_us, topic.max_topic_size_bytes, topic.replication_factor) == (UNLIMITED, UNLIMITED, 1)


def test_topics_with_the_flag_of_gzip_are_compressed_from_the_import_on() -> None:
    """The flag has no effect in Iggy; here sealed segments follow it, and `retention` stays without a word."""
    changes = [iggy.ROOT, iggy.stream(0, "s"), iggy.topic(0, 0, "flagged", compression=2), iggy.topic(0, 1, "plain")]
    system = load_settings(None, {}).settings.system
    topics = state_of(changes).streams[0].topics.values()
    chosen = {each.name: codec_of(each.settings, each.compression, system) for each in topics}
    assert chosen == {"flagged": "gzip", "plain": "none"}
    assert not any("retention" in each.settings for each in topics)


def test_rights_for_a_deleted_stream_do_not_pass_to_the_next_one() -> None:
    rights = bytes(10) + b"\1" + struct.pack("<I", 0) + b"\1" * 6 + b"\0\0"
    user = iggy.user(1, "someone", b"\1" + struct.pack("<I", len(rights)) + rights)
    before = [iggy.ROOT, iggy.stream(0, "a"), user]
    permissions = state_of(before).users[1].permissions
    assert permissions is not None
    assert 0 in permissions.streams
    permissions = state_of([*before, (203, identifier(0)), iggy.stream(0, "b")]).users[1].permissions
    assert permissions is not None
    assert 0 not in permissions.streams


def test_a_deleted_user_takes_the_tokens_along() -> None:
    made = iggy.entry(2, iggy.token("his"), user=1)
    data = iggy.log([iggy.ROOT, iggy.user(1, "someone")]) + made + iggy.entry(3, (34, identifier("someone")))
    state = make_records(build_model(parse_log(data, "log"), "log"), "log", State()).state
    assert sorted(state.users) == [0]
    assert not state.token_owners


def test_a_token_that_had_expired_was_made_again() -> None:
    changes = [iggy.ROOT, iggy.token("ci_token", 1), iggy.stream(0, "a"), iggy.token("ci_token", 0, b"\7" * 32)]
    token = state_of(changes).users[0].tokens["ci_token"]
    assert (token.digest, token.expires_at_us) == (b"\7" * 32, 0)


def test_group_offsets_follow_ids_that_cross(tmp_path: Path) -> None:
    """Old ids and new numbers overlap: no offset may land at another group."""
    groups = [iggy.group(0, 0, number, f"g{number}") for number in range(12)]
    changes = [iggy.ROOT, iggy.stream(0, "s"), iggy.topic(0, 0, "t"), *groups]
    data = iggy.directory(tmp_path / "data", changes, [(0, 0, 0)])
    offsets = data / "streams/0/topics/0/partitions/0/offsets/groups"
    offsets.mkdir(parents=True)
    for number in range(12):
        (offsets / str(number)).write_bytes(struct.pack("<Q", 1000 + number))
    state = import_directory(data)
    found = state.streams[0].topics[0].groups
    assert len(list(offsets.iterdir())) == 12
    for number in range(12):
        assert (offsets / str(found[number].offsets_id)).read_bytes() == struct.pack("<Q", 1000 + number)


def test_an_empty_log_is_an_empty_server(tmp_path: Path) -> None:
    data = iggy.directory(tmp_path / "data", [])
    assert import_directory(data, first=State()) == State()
    assert not (data / "state.messages").exists()
    assert (data / "state" / "log.imported").read_bytes() == b""


def test_a_log_cut_anywhere_is_refused_or_ends_between_entries() -> None:
    borders = {entry.position for entry in parse_log(FIRST, "log")} | {len(FIRST)}
    for length in range(len(FIRST)):
        if length in borders:
            parse_log(FIRST[:length], "log")
        else:
            with pytest.raises(MigrationError, match=r"it ends inside entry \d"):
                parse_log(FIRST[:length], "log")


def test_a_flipped_bit_anywhere_is_refused() -> None:
    for position in range(len(FIRST)):
        damaged = bytearray(FIRST)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(MigrationError):
            parse_log(bytes(damaged), "log")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    whole_import(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_with_a_good_checksum_is_refused_or_read(draw: st.DataObject) -> None:
    """Entries whose payloads were spoiled before their checksums were made."""
    changes = [iggy.ROOT]
    for entry in parse_log(FIRST, "log")[1:]:
        payload = bytearray(entry.payload)
        for _ in range(draw.draw(st.integers(0, 2))):
            if payload:
                payload[draw.draw(st.integers(0, len(payload) - 1))] = draw.draw(st.integers(0, 255))
        code = draw.draw(
            st.sampled_from([entry.code, entry.code, 33, 35, 36, 37, 42, 43, 202, 205, 302, 304, 402, 503])
        )
        cut = draw.draw(st.sampled_from([len(payload), len(payload), len(payload) // 2]))
        changes.append((code, bytes(payload[:cut])))
    whole_import(iggy.log(changes))


def test_long_names_and_many_of_them() -> None:
    streams = [iggy.stream(number, f"{number:0255d}") for number in range(50)]
    assert len(state_of([iggy.ROOT, *streams]).streams) == 50
    assert (
        state_of([iggy.ROOT, (33, iggy.assigned(33, 1, str8("abc") + str8("h") + b"\2\0")[1])]).users[1].active is False
    )
