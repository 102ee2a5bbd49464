"""What topics say of their segments and of the bytes of a partition, on a real server: `segment_size`,
`partition_size_max`, and values that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.config.loader import load_settings
from shardd.config.units import format_size
from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.maintenance.retention_preview import preview
from shardd.metadata import FILE_NAME
from shardd.metadata.load import load_state
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.runtime.throttle import Throttle
from tests.server.test_refusing_topics import TOPIC_FULL, send_status, settings
from tests.server.test_retention import (
    ENV,
    RECORD_BYTES,
    SEGMENT_BYTES,
    after_runs,
    create_topic,
    logs,
    offsets,
    root,
    send,
    until,
)
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wire import Wire

__all__ = ["root"]  # a fixture
SERVER: Final = Serving(env=ENV)


def test_segments_have_the_size_of_their_topic(server: Server, root: Wire) -> None:
    create_topic(root)
    send(root, 30)
    before = logs(server, root)
    assert len(before) > 2
    settings(root, segment_size="1 MiB")
    send(root, 100)
    assert logs(server, root) == before, "the active one grows, those that are sealed stay"
    settings(root, segment_size="")
    send(root, 12)
    assert logs(server, root) != before
    assert offsets(root) == list(range(142))


def test_a_restart_keeps_the_size_of_segments(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, env=ENV) as first:
        connection = wire.connect(first.address)
        connection.create_stream("s")
        create_topic(connection)
        settings(connection, segment_size="1 MiB")
        send(connection, 30)
        connection.close()
    with Server(data, env=ENV) as second:
        connection = wire.connect(second.address)
        send(connection, 30)
        assert logs(second, connection) == [0]
        connection.close()


def test_a_partition_keeps_the_newest_segments_of_its_size(server: Server, root: Wire) -> None:
    limit = 3 * SEGMENT_BYTES
    create_topic(root, partitions=2)
    for partition in range(2):
        send(root, 100, partition)
    settings(root, partition_size_max=str(limit))

    def sizes() -> list[int]:
        return [each.size_bytes for each in root.partitions("s", "t")]

    until(lambda: max(sizes()) <= limit, server)
    after_runs(server)
    for partition in range(2):
        kept = offsets(root, partition)
        assert kept == list(range(kept[0], 100))
        assert limit - 2 * SEGMENT_BYTES < len(kept) * RECORD_BYTES <= limit
        assert kept[0] in logs(server, root, partition), "whole segments go"
    settings(root, partition_size_max="1")
    until(lambda: all(offsets(root, each)[:1] == logs(server, root, each)[-1:] for each in range(2)), server)


def test_without_retention_nothing_goes_and_the_dry_run_says_what_would(server: Server, root: Wire) -> None:
    create_topic(root)
    settings(root, retention="", partition_size_max=str(SEGMENT_BYTES))
    send(root, 60)
    after_runs(server)
    assert offsets(root) == list(range(60))
    dry = CliRunner().invoke(app, ["retention", "enable", "--address", server.address, "--dry-run"])
    over = format_size(60 * RECORD_BYTES - SEGMENT_BYTES)
    assert dry.stdout.splitlines()[0] == f"s/t: {over} are above partition_size_max=10 KiB"


def is_sealed(directory: Path, start: int) -> bool:
    manifest = read_manifest(directory, start)
    return manifest is not None and manifest.sealed is not None


def test_the_preview_counts_whole_segments(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, env=ENV) as running:
        connection = wire.connect(running.address)
        connection.create_stream("s")
        create_topic(connection)
        settings(connection, retention="", partition_size_max=str(3 * SEGMENT_BYTES))
        send(connection, 100)
        sealed = logs(running, connection)
        directory = layout.partition_directory(data, connection.streams()["s"], 0, 0)
        until(lambda: all(is_sealed(directory, start) for start in sealed[:-1]), running)
        connection.close()
    limits = RetentionLimits(load_settings(None, {}, {"system.path": str(data)}).settings)
    [found] = preview(data, load_state(data / FILE_NAME), limits, 0, Throttle())
    kept, one_more = ((sealed[-1] - sealed[found.segments - each]) * RECORD_BYTES for each in (0, 1))
    assert kept <= 3 * SEGMENT_BYTES < one_more
    assert found.messages == sealed[found.segments]


def test_a_partition_that_has_its_size_refuses_where_its_topic_does(root: Wire) -> None:
    limit = 10 * RECORD_BYTES
    create_topic(root, partitions=2)
    settings(root, discard="refuse", partition_size_max=str(limit))
    assert send_status(root, count=11) == TOPIC_FULL
    assert send_status(root, count=10) == 0
    assert send_status(root) == TOPIC_FULL
    assert [send_status(root, partition=1) for _ in range(11)] == [0] * 10 + [TOPIC_FULL]
    settings(root, partition_size_max=str(limit + RECORD_BYTES))
    assert send_status(root, count=2) == TOPIC_FULL
    assert send_status(root) == 0
    assert offsets(root) == list(range(11))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segment_size", "1 MiB - 1"),
        ("segment_size", "1048575"),
        ("segment_size", "0"),
        ("segment_size", "1073741825"),
        ("segment_age_max", "59 s"),
        ("segment_age_max", "3651 days"),
        ("segment_age_max", "-1"),
        ("partition_size_max", "1125899906842625"),
    ],
)
def test_values_out_of_range_are_refused(root: Wire, key: str, value: str) -> None:
    create_topic(root)
    request = SetTopicSettings("s", "t", ((key, value),))
    assert root.status(ExtensionCode.SET_TOPIC_SETTINGS, request.encode()) == 2


def test_ages_of_segments_are_taken_and_shown(root: Wire) -> None:
    create_topic(root)
    for value in ("1 m", "36 h", "0", "0 s"):
        settings(root, segment_age_max=value)
