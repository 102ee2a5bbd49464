"""One row of the table is all that wire, permissions, records, snapshots, restarts and the command line need to know of
a topic setting: the rows here exist in these tests only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from shardd.cli.main import app
from shardd.config.loader import load_settings
from shardd.metadata import State, apply, commands
from shardd.metadata.apply import ApplyError
from shardd.metadata.commands import Ref
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.records import Record
from shardd.metadata.snapshot import decode_snapshot, encode_snapshot
from shardd.metadata.validate import validate
from shardd.protocol import topic_setting_table
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.topic_setting_table import (
    ACK,
    SETTINGS,
    ChangedBy,
    Count,
    Duration,
    Name,
    OldSegments,
    Setting,
    SettingType,
    Size,
    canonical,
    check_stored,
)
from shardd.protocol.topic_settings import SETTINGS_MAX, SetTopicSettings
from tests.unit.services_harness import Workers

DAY_US: Final = 86_400_000_000
SYSTEM: Final = load_settings(None, {}).settings.system
NEW_TOPIC: Final = {"retention": "on", "size_held_max": "0"}  # what every new topic has
PATIENCE: Final = Setting(
    "patience",
    Duration(0, 3650 * DAY_US),
    lambda system: system.scrubber.pause_ms * 1000,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.FOLLOW,
)
BLOCK: Final = Setting(
    "block", Size(512, 1 << 30), lambda _system: 1 << 20, ChangedBy.STREAM_MANAGER, OldSegments.UNCHANGED
)
COPIES: Final = Setting("copies", Count(1, 9), lambda _system: 1, ChangedBy.TOPIC_MANAGER, OldSegments.UNCHANGED)
MODE: Final = Setting(
    "mode", Name(("plain", "zstd")), lambda _system: "plain", ChangedBy.TOPIC_MANAGER, OldSegments.UNCHANGED
)
ROWS: Final[tuple[Setting[Any], ...]] = (PATIENCE, BLOCK, COPIES, MODE)


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_setting_table, "SETTINGS", {**SETTINGS, **{each.key: each for each in ROWS}})


@pytest.fixture
def workers(table: None, tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path / "data", shards=2) as running:
        root = running.connect()
        root.create_topic(root.create_stream("s"), "t", 2)
        yield running


def topic(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["topic", *arguments, "--address", address])


def populated() -> State:
    state = apply(State(), Record(1, 1, 0, 0, commands.CreateStream("s")))
    return apply(state, Record(2, 1, 0, 0, commands.CreateTopic(Ref(0, 1), "t", 1, 1, 2**64 - 1, 2**64 - 1, 1)))


def change(*settings: tuple[str, str]) -> commands.SetTopicSettings:
    return commands.SetTopicSettings(Ref(0, 1), Ref(0, 2), settings)


def test_a_row_is_all_that_a_new_setting_needs(workers: Workers, tmp_path: Path) -> None:
    here, there = workers.addresses
    shown = json.loads(topic(there, "get", "s", "t", "--json").stdout)["settings"]
    assert list(shown) == [*SETTINGS, "patience", "block", "copies", "mode"]
    pause_us = SYSTEM.scrubber.pause_ms * 1000
    assert shown["patience"] == {"value": PATIENCE.type.show(pause_us), "set": False}
    done = topic(there, "set", "s", "t", "patience=1 week", "block=4096", "copies=3", "mode=zstd", "ack=durable")
    assert (done.exit_code, done.stderr) == (0, "")
    for address in (here, there):
        shown = json.loads(topic(address, "get", "s", "t", "--json").stdout)["settings"]
        values = {"ack": "durable", "patience": "7 d", "block": "4 KiB", "copies": "3", "mode": "zstd"}
        assert {key: shown[key]["value"] for key in values} == values
        assert all(shown[key]["set"] for key in values)
    stored = {"patience": str(7 * DAY_US), "block": "4096", "copies": "3", "mode": "zstd", "ack": "durable"}
    for shard in (0, 1):
        found = workers.context(shard).metadata.state.streams[0].topics[0].settings
        assert dict(found) == stored | NEW_TOPIC
        assert (PATIENCE.of(found, SYSTEM), BLOCK.of(found, SYSTEM), MODE.of(found, SYSTEM)) == (
            7 * DAY_US,
            4096,
            "zstd",
        )
    assert topic(here, "set", "s", "t", "patience=").exit_code == 0
    shown = json.loads(topic(there, "get", "s", "t", "--json").stdout)["settings"]
    assert shown["patience"] == {"value": PATIENCE.type.show(pause_us), "set": False}
    assert "patience" not in load_state(tmp_path / "data" / FILE_NAME).streams[0].topics[0].settings


def test_what_was_set_is_there_after_a_start_and_refused_by_a_program_without_the_row(
    table: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with Workers(tmp_path / "data") as running:
            root = running.connect()
            if not running.context().metadata.state.streams:
                root.create_topic(root.create_stream("s"), "t", 1)
                root.request(
                    ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", "t", (("patience", "90 m"),)).encode()
                )
            [address] = running.addresses
            shown = json.loads(topic(address, "get", "s", "t", "--json").stdout)["settings"]
            assert shown["patience"] == {"value": "90 m", "set": True}
    monkeypatch.setattr(topic_setting_table, "SETTINGS", SETTINGS)
    with pytest.raises(ApplyError, match="sets 'patience' to '5400000000', which this version does not know"):
        load_state(tmp_path / "data" / FILE_NAME)


def test_the_row_says_who_may_change_it(workers: Workers) -> None:
    manages = Permissions(streams=Map({0: StreamPermissions(topics=Map({0: TopicPermissions(manage_topic=True)}))}))
    workers.create_user("topics", manages)
    workers.create_user("streams", Permissions(streams=Map({0: StreamPermissions(manage_stream=True)})))
    for name, settings, status in (
        ("topics", (("patience", "1 s"),), Status.OK),
        ("topics", (("block", "1 KiB"),), Status.UNAUTHORIZED),
        ("topics", (("patience", "2 s"), ("block", "")), Status.UNAUTHORIZED),
        ("streams", (("patience", "3 s"), ("block", "1 KiB")), Status.OK),
    ):
        request = SetTopicSettings("s", "t", settings).encode()
        found = workers.connect(1, name, "secret").status(ExtensionCode.SET_TOPIC_SETTINGS, request)
        assert found == status, (name, settings)
    stored = dict(workers.context(1).metadata.state.streams[0].topics[0].settings)
    assert stored == {"patience": "3000000", "block": "1024"} | NEW_TOPIC


def test_a_value_out_of_range_is_refused_with_the_range(workers: Workers) -> None:
    for text, sentence in (
        ("block=1", "block takes a size from 512 B to 1 GiB, not '1'"),
        ("patience=5", "patience takes a duration from 0 s to 3650 d, not '5'"),
        ("copies=10", "copies takes a number from 1 to 9, not '10'"),
        ("mode=ZSTD", "mode takes plain, zstd, not 'ZSTD'"),
    ):
        done = topic(workers.addresses[0], "set", "s", "t", text)
        assert (done.exit_code, done.stderr.strip()) == (2, f"shardd: {sentence}")
    root = workers.connect(1)
    for key, text in (
        ("block", "511"),
        ("block", "2 GiB"),
        ("block", "-1"),
        ("block", "NaN B"),
        ("patience", "9" * 254 + "d"),
        ("patience", "1e3 s"),
        ("copies", "0"),
        ("copies", "\u0663"),
        ("copies", "+3"),
        ("copies", "1" * 255),
        ("mode", " plain"),
        ("mode", "plain\0"),
    ):
        request = SetTopicSettings("s", "t", (("ack", "memory"), (key, text))).encode()
        assert root.status(ExtensionCode.SET_TOPIC_SETTINGS, request) == Status.INVALID_CONFIGURATION, (key, text)
    assert dict(workers.context(0).metadata.state.streams[0].topics[0].settings) == NEW_TOPIC


@pytest.mark.parametrize(
    ("key", "stored"),
    [("patience", "1 s"), ("patience", "007"), ("copies", "10"), ("block", "511"), ("mode", "gzip"), ("new", "1")],
)
def test_records_and_snapshots_take_the_canonical_form_only(key: str, stored: str) -> None:
    state = populated()
    assert validate(state, change((key, stored))) == check_stored(key, stored) != Status.OK
    with pytest.raises(ApplyError, match=f"sets '{key}' to '{stored}', which this version does not know"):
        apply(state, Record(3, 1, 0, 0, change((key, stored))))


def test_a_snapshot_keeps_the_values_and_is_refused_without_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (("patience", "1000000"), ("ack", "memory"))
    state = replace(apply(populated(), Record(3, 1, 0, 0, change(*settings))), digest=b"d" * 32)
    data = encode_snapshot(state, [])
    assert decode_snapshot(Path("s"), data).state.streams[0].topics[0].settings == Map(dict(settings))
    monkeypatch.setattr(topic_setting_table, "SETTINGS", SETTINGS)
    with pytest.raises(LogError, match="topic t has 'patience' set to '1000000'"):
        decode_snapshot(Path("s"), data)


def test_what_ack_writes_is_what_it_always_wrote() -> None:
    """The record of version 1, byte for byte."""
    expected = "94ce534400209200019200029192a361636ba764757261626c65"
    assert commands.encode_command(change(("ack", canonical("ack", "durable")))).hex() == expected
    assert {check_stored("ack", level) for level in ("", "memory", "written", "durable")} == {Status.OK}
    assert ACK.of(Map(), SYSTEM) == SYSTEM.partition.ack and ACK.of({"ack": "memory"}, SYSTEM) == "memory"


@given(st.sampled_from(ROWS), st.data())
def test_what_is_stored_is_shown_and_what_is_shown_is_stored(row: Setting[Any], data: st.DataObject) -> None:
    value: Any
    if isinstance(row.type, Count):
        value = data.draw(st.integers(row.type.least, row.type.most))
    else:
        assert isinstance(row.type, Name)
        value = data.draw(st.sampled_from(row.type.names))
    kind: SettingType[Any] = row.type
    stored = kind.store(value)
    assert kind.load(stored) == value == kind.parse(kind.show(value))
    assert kind.store(kind.parse(kind.show(value))) == stored


@given(st.sampled_from(ROWS), st.text(max_size=255) | st.from_regex(r"\A[0-9. ]{1,9}[a-zA-Z ]{0,6}\Z"))
@example(PATIENCE, "0.5 us")
@example(BLOCK, "512.5 B")
def test_any_text_is_a_value_that_can_be_stored_or_a_sentence(row: Setting[Any], text: str) -> None:
    rows = {each.key: each for each in ROWS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_setting_table, "SETTINGS", rows)
        try:
            stored = canonical(row.key, text)
        except ShardError as error:
            assert error.status == Status.INVALID_CONFIGURATION and str(error).startswith(f"{row.key} takes ")
        else:
            assert check_stored(row.key, stored) == Status.OK


def test_the_table_fits_its_places() -> None:
    """One request can carry all keys; every key is a str8 and has its row in the documents."""
    assert len(SETTINGS) <= SETTINGS_MAX
    document = (Path(__file__).parents[2] / "docs" / "extensions.md").read_text()
    for key, row in SETTINGS.items():
        assert key == row.key and 1 <= len(key.encode()) <= 255 and "=" not in key
        [line] = [each for each in document.splitlines() if each.startswith(f"| `{key}` |")]
        values = row.type.names if isinstance(row.type, Name) else (row.type.takes,)
        assert all(value in line for value in values), line
