"""Retention on a real server: the scenarios of Apache Iggy's own tests of its cleaner by name (its segment size of 10
KiB and interval of 100 ms), and what is ours: switching on, clocks, new limits."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.config.loader import load_settings
from shardd.log import layout
from shardd.maintenance import clock_memory
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.metadata import Record, State
from shardd.metadata.apply import apply
from shardd.metadata.commands import (
    CreateStream,
    CreateTopic,
    Ref,
    SetTopicSettings,
    UpdateTopic,
    decode_command,
    encode_command,
)
from shardd.protocol import topic_settings
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.top import shard_figures
from tests.support.wire import Wire

TIMEOUT_S = 60.0
SEGMENT_BYTES = 10 << 10
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
RECORD_BYTES = 64 + 936
FIRST, NEXT = 3, 5  # polling strategies
ENV = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED": "true",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}
SERVER: Final = Serving(env=ENV)


@pytest.fixture
def root(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        connection.create_stream("s")
        yield connection
        connection.delete_stream("s")


def create_topic(root: Wire, *, partitions: int = 1, expiry_us: int = 0, size_bytes: int = 0, name: str = "t") -> None:
    fixed = struct.pack("<IBQQB", partitions, 1, expiry_us, size_bytes, 0)
    root.request(Code.CREATE_TOPIC, wire.identifier("s") + fixed + wire.str8(name))


def update_topic(root: Wire, *, expiry_us: int, size_bytes: int = 0) -> None:
    place = wire.identifier("s") + wire.identifier("t")
    root.request(Code.UPDATE_TOPIC, place + struct.pack("<BQQB", 1, expiry_us, size_bytes, 0) + wire.str8("t"))


def send(root: Wire, count: int, partition: int = 0) -> None:
    for _ in range(count):
        root.send("s", "t", wire.to_partition(partition), [wire.message(b"x" * 936)])


def offsets(root: Wire, partition: int = 0) -> list[int]:
    polled = root.poll("s", "t", partition, strategy=FIRST, count=10_000)
    return [each.offset for each in polled.messages]


def logs(server: Server, root: Wire, partition: int = 0) -> list[int]:
    directory = layout.partition_directory(server.data_dir, root.streams()["s"], 0, partition)
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def until(condition: Callable[[], bool], server: Server) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


def total_bytes(root: Wire) -> int:
    return sum(each.size_bytes for each in root.partitions("s", "t"))


def runs(server: Server) -> int:
    return min(row["retention.runs"] for row in shard_figures(server.address))


def after_runs(server: Server, count: int = 5) -> None:
    """So that nothing that is to stay stays only because nobody looked."""
    before = runs(server)
    until(lambda: runs(server) >= before + count, server)


def test_expiry_after_rotation(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=2 * SECOND_US)
    send(root, 30)
    assert len(logs(server, root)) > 2
    until(lambda: offsets(root) == [] and logs(server, root) == [30], server)
    [details] = root.partitions("s", "t")
    assert (details.size_bytes, details.messages_count, details.segments_count) == (0, 0, 1)
    send(root, 1)
    assert offsets(root) == [30]


def test_active_segment_protected(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=HOUR_US)
    send(root, 5)
    after_runs(server)
    assert offsets(root) == list(range(5))
    assert logs(server, root) == [0]


def test_size_based_retention(server: Server, root: Wire) -> None:
    """At nine tenths of the size, to less than that, and no more than it takes."""
    limit = 5 * SEGMENT_BYTES
    create_topic(root, size_bytes=limit)
    send(root, 100)
    until(lambda: len(offsets(root)) * RECORD_BYTES < limit * 9 // 10, server)
    after_runs(server)
    left = offsets(root)
    assert left == list(range(left[0], 100))
    assert limit * 9 // 10 - (SEGMENT_BYTES + 2 * RECORD_BYTES) <= len(left) * RECORD_BYTES < limit * 9 // 10
    until(lambda: logs(server, root)[0] == left[0], server)


def test_combined_retention(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=4 * SECOND_US, size_bytes=5 * SEGMENT_BYTES)
    send(root, 100)
    until(lambda: len(offsets(root)) < 100, server)
    until(lambda: logs(server, root) == [100], server)
    assert offsets(root) == []


def test_expiry_multipartition(server: Server, root: Wire) -> None:
    create_topic(root, partitions=3, expiry_us=2 * SECOND_US)
    for partition in range(3):
        send(root, 20, partition)
    until(lambda: all(logs(server, root, partition) == [20] for partition in range(3)), server)


def test_fair_size_based_cleanup_multipartition(server: Server, root: Wire) -> None:
    limit = 9 * SEGMENT_BYTES
    create_topic(root, partitions=3, size_bytes=limit)
    for _ in range(60):
        for partition in range(3):
            send(root, 1, partition)
    until(lambda: total_bytes(root) < limit * 9 // 10, server)
    after_runs(server)
    sizes = [each.size_bytes for each in root.partitions("s", "t")]
    assert all(sizes)
    assert max(sizes) - min(sizes) <= 2 * (SEGMENT_BYTES + 2 * RECORD_BYTES), sizes


def test_expiry_respects_consumer_offset(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=4 * SECOND_US)
    send(root, 30)
    root.store_offset("s", "t", 0, 4, who=7)
    seen = [offsets(root)]
    until(lambda: seen.append(offsets(root)) or seen[-1][:1] == [5], server)  # type: ignore[func-returns-value]
    assert seen[-1] == list(range(5, 30))  # readable to all
    held = [row["retention.held_partitions"] for row in shard_figures(server.address)]
    assert sum(held) <= 1
    root.store_offset("s", "t", 0, 29, who=7)
    until(lambda: offsets(root) == [] and logs(server, root) == [30], server)


def test_a_consumer_that_stopped_holds_messages_for_a_bounded_time(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=2 * SECOND_US)
    send(root, 30)
    root.store_offset("s", "t", 0, 4, who=7)
    until(lambda: logs(server, root) == [30], server)
    assert "are kept beyond their limits: the stored offset 4 of consumer 7" in server.log()


def test_active_segments_alone_above_the_limit_are_rolled_early(server: Server, root: Wire) -> None:
    create_topic(root, partitions=8, size_bytes=SEGMENT_BYTES)
    for partition in range(8):
        send(root, 5, partition)
    until(lambda: total_bytes(root) < SEGMENT_BYTES * 9 // 10, server)


def test_new_limits_of_a_topic_count_at_once(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=HOUR_US)
    send(root, 30)
    after_runs(server)
    assert len(offsets(root)) == 30
    update_topic(root, expiry_us=1000)  # as small as the recorded clients of Iggy set it
    until(lambda: offsets(root) == [], server)
    until(lambda: logs(server, root) == [30], server)
    update_topic(root, expiry_us=HOUR_US)
    assert offsets(root) == []  # what was gone does not come back
    send(root, 3)
    assert offsets(root) == [30, 31, 32]


def test_nothing_expires_when_the_cleaner_is_off(tmp_path: Path) -> None:
    off = ENV | {"IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED": "false"}
    with Server(tmp_path / "data", env=off) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, expiry_us=1000)
        send(root, 30)
        time.sleep(0.2)
        assert len(offsets(root)) == 30


def test_a_restart_brings_nothing_back(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env=ENV)
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, expiry_us=3 * SECOND_US)
            send(root, 30)
            until(lambda: logs(server, root) == [30], server)
            send(root, 2)
        for following, end in ((32, server.kill_supervisor), (33, server.stop)):
            end()
            server.start()
            with wire.connect(server.address) as root:
                assert not [each for each in offsets(root) if each < 30]
                send(root, 1)
                assert offsets(root)[-1] == following
    finally:
        server.stop()


def test_topics_of_records_without_the_word_keep_everything() -> None:
    state = apply(State(), Record(1, 1, 0, 0, CreateStream("s")))
    new = CreateTopic(Ref(0, 1), "t", 1, 1, 1000, 1000, 1, retention=True)
    old = decode_command(msgspec.msgpack.encode(msgspec.msgpack.decode(encode_command(new))[:-1]))
    assert isinstance(old, CreateTopic) and not old.retention
    limits = RetentionLimits(load_settings(None, {}).settings)
    for command, on in ((old, False), (new, True)):
        [topic] = apply(state, Record(2, 1, 0, 0, command)).streams[0].topics.values()
        assert (limits.is_on(topic), limits.of(topic).expiry_us) == (on, 1000 * on)


def test_a_change_of_an_earlier_topic_switches_it_on_but_not_against_a_word() -> None:
    state = apply(State(), Record(1, 1, 0, 0, CreateStream("s")))
    state = apply(state, Record(2, 1, 0, 0, CreateTopic(Ref(0, 1), "t", 1, 1, 1000, 1000, 1)))
    change = UpdateTopic(Ref(0, 1), Ref(0, 2), "t", 1, 5000, 1000, 1, retention=True)
    assert dict(apply(state, Record(3, 1, 0, 0, change)).streams[0].topics[0].settings) == {"retention": "on"}
    off = apply(state, Record(3, 1, 0, 0, SetTopicSettings(Ref(0, 1), Ref(0, 2), (("retention", "off"),))))
    assert dict(apply(off, Record(4, 1, 0, 0, change)).streams[0].topics[0].settings) == {"retention": "off"}


def test_retention_enable_says_what_would_go_and_switches_on(server: Server, root: Wire) -> None:
    create_topic(root, expiry_us=1000)
    as_before = topic_settings.SetTopicSettings("s", "t", (("retention", ""),))
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, as_before.encode())
    send(root, 5)
    after_runs(server)
    assert len(offsets(root)) == 5
    arguments = ["retention", "enable", "--address", server.address]
    dry = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert (dry.exit_code, dry.stdout) == (0, "s/t: 5 of 5 messages have expired\n1 topics, nothing was changed\n")
    assert len(offsets(root)) == 5
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and done.stdout.endswith("1 topics: retention is on\n")
    assert offsets(root) == []
    assert CliRunner().invoke(app, arguments).stdout == "0 topics: retention is on\n"


def test_the_dry_run_says_what_count_discard_and_archive_do(server: Server, root: Wire) -> None:
    create_topic(root, size_bytes=5 * SEGMENT_BYTES)
    arguments = ["retention", "enable", "--address", server.address, "--dry-run"]

    def said(**values: str) -> str:
        changed = topic_settings.SetTopicSettings("s", "t", (("retention", ""), *values.items()))
        root.request(ExtensionCode.SET_TOPIC_SETTINGS, changed.encode())
        [line, _] = CliRunner().invoke(app, arguments).stdout.splitlines()
        return line

    said()
    send(root, 60)
    assert said().endswith("are too much")
    counted = said(partition_messages_max="25", archive="required")
    assert "35 messages are above partition_messages_max=25" in counted
    assert counted.endswith("archive=required: what goes waits in archive/spool until it is archived")
    refused = said(discard="refuse", archive="none")
    assert refused == "s/t: discard=refuse: nothing goes for its size or its count, sends are refused"
    assert len(offsets(root)) == 60


def test_topic_get_names_who_holds_messages_back(server: Server, root: Wire) -> None:
    create_topic(root, partitions=2, expiry_us=6 * SECOND_US)
    for partition in range(2):
        send(root, 30, partition)
    root.store_offset("s", "t", 1, 4, who=7)
    arguments = ["topic", "get", "s", "t", "--address", server.address]
    held = "held back by consumer 7 in partition 1 (stored offset 4)"
    until(lambda: held in " ".join(CliRunner().invoke(app, arguments).stdout.split()), server)
    facts = msgspec.json.decode(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert facts["held_back_by"] == [{"partition": 1, "kind": "consumer", "id": 7, "stored_offset": 4}]
    root.store_offset("s", "t", 1, 29, who=7)
    until(lambda: "held back" not in CliRunner().invoke(app, arguments).stdout, server)


def test_start_and_doctor_say_what_would_go_of_topics_that_keep_everything(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env=ENV)
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, expiry_us=HOUR_US, size_bytes=5 * SEGMENT_BYTES)
            as_before = topic_settings.SetTopicSettings("s", "t", (("retention", ""),))
            root.request(ExtensionCode.SET_TOPIC_SETTINGS, as_before.encode())
            send(root, 100)
            until(lambda: len(logs(server, root)) > 5 and not any(row["sealing.waiting"] for row in
                  shard_figures(server.address)), server)  # fmt: skip
        server.stop()
        server.start()
        said = "1 topics keep everything, whatever their expiry and size"
        until(lambda: said in server.log(), server)
        doctor = CliRunner().invoke(app, ["doctor", "--data", str(server.data_dir), "--json"])
        [finding] = [each for each in msgspec.json.decode(doctor.stdout) if each["check"] == "retention"]
        assert finding["level"] == "warning" and finding["finding"].startswith(f"{said}: s/t (")
        messages = int(finding["finding"].split("(")[1].split()[0])
        assert 100 - 5 * SEGMENT_BYTES * 9 // 10 // RECORD_BYTES <= messages < 100
        assert finding["finding"].split(": ", 1)[1] in server.log()
    finally:
        server.stop()


def test_a_clock_that_jumped_while_the_server_was_down_is_doubted_and_a_right_one_is_not(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env=ENV)
    remembered = server.data_dir / clock_memory.FILE_NAME
    now_us = time.time_ns() // 1000
    two_hours_ago = clock_memory.encode(clock_memory.Recalled(now_us - 2 * HOUR_US), bytes(36), 0)
    try:
        server.start()
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, expiry_us=HOUR_US)
            send(root, 20)
            until(remembered.exists, server)
            update_topic(root, expiry_us=SECOND_US)
            until(lambda: offsets(root) == [], server)  # by a clock that is right
            update_topic(root, expiry_us=HOUR_US)
            send(root, 20)
        for content, served in ((two_hours_ago, True), (two_hours_ago[:-1] + b"x", False)):
            server.stop()
            remembered.write_bytes(content)
            server.start()
            with wire.connect(server.address) as root:
                update_topic(root, expiry_us=SECOND_US)
                if served:
                    time.sleep(2)
                    after_runs(server)
                    assert offsets(root) == list(range(20, 40))
                    assert "ahead all at once: nothing expires by it for 3600 s" in server.log()
                    assert all(row["retention.clock_doubted_us"] > HOUR_US for row in shard_figures(server.address))
                else:
                    until(partial(lambda root: offsets(root) == [], root), server)
    finally:
        server.stop()
