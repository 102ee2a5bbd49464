"""Size and count limits win over stored offsets, files go without waiting for the interval of syncs, and topics of
earlier versions keep their rule until somebody changes it (docs/adr/0128-sizes-win.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.log.segment_reader import segment_starts
from shardd.protocol import topic_settings
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from tests.server.test_retention import (
    ENV,
    NEXT,
    SEGMENT_BYTES,
    after_runs,
    create_topic,
    logs,
    offsets,
    send,
    total_bytes,
    until,
)
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.top import shard_figures
from tests.support.wire import Wire

GROUP = b"\x02" + wire.identifier("g")
SIZE = 10 * SEGMENT_BYTES
MESSAGES = 250  # of a kilobyte: more than two times the size
SERVER: Final = Serving(env=ENV)


@pytest.fixture
def root(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        connection.create_stream("s")
        yield connection
        connection.delete_stream("s")


def set_setting(root: Wire, key: str, value: str) -> None:
    stream = root.streams()["s"]
    request = topic_settings.SetTopicSettings(stream, 0, ((key, value),))
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())


def sealed_bytes(server: Server, root: Wire) -> int:
    directory = layout.partition_directory(server.data_dir, root.streams()["s"], 0, 0)
    manifests = (read_manifest(directory, start) for start in segment_starts(directory))
    return sum(each.sealed.log_bytes for each in manifests if each is not None and each.sealed is not None)


def overtaken(server: Server) -> int:
    return sum(row["retention.overtaken_partitions"] for row in shard_figures(server.address))


def shown(server: Server, *more: str) -> str:
    return CliRunner().invoke(app, ["topic", "get", "s", "t", "--address", server.address, *more]).stdout


def test_the_size_of_a_topic_wins_over_a_forgotten_stored_offset(server: Server, root: Wire) -> None:
    create_topic(root, size_bytes=SIZE)
    send(root, 10)
    root.store_offset("s", "t", 0, 4, who=7)
    send(root, MESSAGES)
    until(lambda: total_bytes(root) < SIZE * 9 // 10, server)
    first = offsets(root)[0]
    assert first > 5
    [message, *_] = root.poll("s", "t", 0, strategy=NEXT, count=1, who=7).messages
    assert message.offset >= first  # the consumer that was overtaken sees it by the offset of its next message
    until(lambda: overtaken(server) == 1, server)
    after_runs(server)
    assert server.log().count("are gone that the stored offset 4 of consumer 7 has not passed") == 1
    settings = msgspec.json.decode(shown(server, "--json"))["settings"]
    assert settings["size_held_max"] == {"value": "0 s", "set": True}
    behind = [{"partition": 0, "kind": "consumer", "id": 7, "stored_offset": 4}]
    assert msgspec.json.decode(shown(server, "--json"))["overtaken"] == behind
    assert "consumer 7 in partition 0 (stored offset 4)" in shown(server)


def test_the_count_of_a_partition_wins_over_stored_offsets_of_a_consumer_and_a_group(
    server: Server, root: Wire
) -> None:
    create_topic(root)
    place = wire.identifier("s") + wire.identifier("t")
    root.request(Code.CREATE_CONSUMER_GROUP, place + wire.str8("g"))
    root.request(Code.JOIN_CONSUMER_GROUP, place + wire.identifier("g"))
    set_setting(root, "partition_messages_max", "20")
    send(root, 60)
    root.store_offset("s", "t", 0, 0, who=7)
    root.store_offset("s", "t", 0, 1, who=GROUP)
    until(lambda: offsets(root) == list(range(40, 60)), server)
    assert [root.get_offset("s", "t", 0, who=who) for who in (7, GROUP)] == [0, 1]


def test_a_topic_of_an_earlier_version_keeps_its_messages_until_somebody_says_otherwise(
    server: Server, root: Wire
) -> None:
    """Its record has no word about it: the same as a setting that was taken back."""
    create_topic(root, size_bytes=SIZE)
    set_setting(root, "size_held_max", "")
    send(root, 10)
    root.store_offset("s", "t", 0, 4, who=7)
    send(root, MESSAGES)
    after_runs(server, 20)
    assert offsets(root)[0] == 0 and total_bytes(root) > 2 * SIZE  # whole segments go for a size
    settings = msgspec.json.decode(shown(server, "--json"))["settings"]
    assert settings["size_held_max"] == {"value": "expiry", "set": False}
    assert "beyond nine tenths of its size; they go with size_held_max=0s" in shown(server)
    set_setting(root, "size_held_max", "0 s")
    until(lambda: total_bytes(root) < SIZE * 9 // 10, server)


def test_a_topic_holds_messages_for_stored_offsets_up_to_the_age_that_it_says(server: Server, root: Wire) -> None:
    create_topic(root)
    set_setting(root, "size_held_max", "1 h")
    set_setting(root, "partition_messages_max", "20")
    send(root, 60)
    root.store_offset("s", "t", 0, 4, who=7)
    until(lambda: offsets(root)[0] == 5, server)
    after_runs(server, 20)
    assert offsets(root) == list(range(5, 60))
    set_setting(root, "size_held_max", "1 s")
    until(lambda: offsets(root) == list(range(40, 60)), server)


def test_files_go_without_waiting_for_the_interval_of_syncs(tmp_path: Path) -> None:
    env = ENV | {"SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "1 h"}
    with Server(tmp_path / "data", env=env) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, size_bytes=SIZE)
        send(root, MESSAGES)
        until(lambda: total_bytes(root) < SIZE * 9 // 10, server)
        until(lambda: logs(server, root)[0] > 0 and len(logs(server, root)) <= SIZE // SEGMENT_BYTES + 1, server)


def test_topics_from_before_are_named_with_what_would_go(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, env=ENV) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, size_bytes=SIZE)
        set_setting(root, "size_held_max", "")
        send(root, 1)
        root.store_offset("s", "t", 0, 0, who=7)
        send(root, MESSAGES)
        until(lambda: sealed_bytes(server, root) > SIZE, server)
    said = CliRunner().invoke(app, ["upgrade", "check", str(data)]).stdout
    [line] = [each for each in said.splitlines() if "size_held_max" in each]
    assert line.startswith("topics 1 let stored offsets hold messages beyond size or count") and "s/t (" in line, line
    assert "s/t (0 messages" not in line
    with Server(data, env=ENV) as server:
        until(lambda: "1 topics of earlier versions let stored offsets hold messages" in server.log(), server)
