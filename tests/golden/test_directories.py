"""Golden data directories of every version, opened by a real server: everything in them is served, damage costs what is
damaged, and what a later version wrote is refused with a sentence and left as it is."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from typer.testing import CliRunner

from shardd.backup.create import create_backup
from shardd.backup.format import BackupError
from shardd.cli.main import app
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state, read_stored
from shardd.metadata.log_file import FILE_NAME, check_tail
from tests.support import golden_directory as golden
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

VERSIONS = golden.versions()
EVENTS = Path("streams/0/topics/0/partitions")  # of orders/events
READ_ONLY = 10006
UNREADABLE = 10002
Damage = Callable[[Path], None]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_directory_of_an_earlier_version_is_served_whole(version: str, tmp_path: Path) -> None:
    recorded = golden.description(version)
    with Server(golden.unpack(version, tmp_path), ONE_SHARD) as server:
        assert golden.describe(server.address, recorded["secrets"]) == recorded["seen"]
        assert golden.settings(server.address) == recorded.get("settings", {})


@pytest.mark.parametrize("version", VERSIONS)
def test_what_can_be_made_again_is_not_missed(version: str, tmp_path: Path) -> None:
    """Torn ends, lost and wrong indexes, a cut offset: nothing that was acknowledged is in them, or it is elsewhere."""
    recorded = golden.description(version)
    data = golden.unpack(version, tmp_path)
    with (data / "state.messages").open("ab") as log:  # a record whose write was cut
        log.write(struct.pack("<IQ", 200, 1) + b"torn" * 20)
    tail = _active_log(data / EVENTS / "0")
    with tail.open("ab") as log:
        log.write(tail.read_bytes()[-40:])
    (data / EVENTS / "1" / f"{0:020d}.index").unlink()
    (data / EVENTS / "2" / f"{0:020d}.index").write_bytes(b"x" * 16)
    _damage_offset(data / EVENTS / "1")
    recorded["seen"]["streams"]["orders"]["topics"]["events"]["partitions"][1]["offsets"]["7"] = None
    with Server(data, ONE_SHARD) as server:
        assert golden.describe(server.address, recorded["secrets"]) == recorded["seen"]
    assert (data / "state.messages.torn").exists()
    assert tail.with_suffix(".torn").exists()


def test_a_flipped_bit_costs_one_message_and_a_later_version_one_partition(tmp_path: Path) -> None:
    """Markers and manifests of a later version keep their partitions closed, not the others."""
    version = VERSIONS[-1]
    data = golden.unpack(version, tmp_path)
    sealed = data / EVENTS / "0" / f"{39:020d}.log"
    content = bytearray(sealed.read_bytes())
    content[len(content) // 2] ^= 4
    sealed.write_bytes(content)
    closed = [data / EVENTS / "1" / "incarnation", data / "streams/2/topics/0/partitions/3" / "imported"]
    closed[0].write_bytes(b"SHRDINC2" + closed[0].read_bytes()[8:] + b"more")
    closed[1].write_bytes(b"SHRDIMP2" + bytes(8))
    sentences = [f"{path} has format version 2, which this program does not know; it knows 1 and" for path in closed]
    closed += list((data / EVENTS / "1").glob("*.log"))
    closed.append(_later_manifest(data / EVENTS / "2"))
    sentences.append(closed[-1].name)
    before = [path.read_bytes() for path in closed]
    with Server(data, ONE_SHARD) as server:
        assert all(sentence in server.log() for sentence in sentences), server.log()
        with wire.connect(server.address) as root:
            _check_all_but_one(root, version, tmp_path)
            for stream, topic, partition in [("orders", "events", 1), ("metrics", "cpu", 3)]:
                batch = wire.batch(stream, topic, wire.to_partition(partition), [wire.message(b"x")])
                assert root.status(wire.SEND_MESSAGES, batch) == READ_ONLY
                with pytest.raises(wire.StatusError, match=str(UNREADABLE)):
                    root.poll(stream, topic, partition)
            assert len(root.read_all("orders", "audit", 0)) == 25
    assert [path.read_bytes() for path in closed] == before


def _damage_offset(partition: Path) -> None:
    """The one that consumer 7 has stored there."""
    table = partition / "consumer-offsets"
    if table.exists():
        content = bytearray(table.read_bytes())
        content[64 + 8] ^= 1  # its only value
        table.write_bytes(content)
    else:
        (partition / "offsets" / "consumers" / "7").write_bytes(b"\x01\x02\x03")


def _active_log(partition: Path) -> Path:
    return max(partition.glob("*.log"))


def _later_manifest(partition: Path) -> Path:
    manifest = max(partition.glob("*.manifest"))
    content = manifest.read_bytes()
    head = content[:8] + struct.pack("<I", 9) + content[12:56]
    manifest.write_bytes(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + content[64:])
    return manifest


def _check_all_but_one(root: wire.Wire, version: str, tmp_path: Path) -> None:
    """orders/events/0: exactly one of its messages is not served, all others are what they were."""
    whole = golden.unpack(version, tmp_path / "whole") / EVENTS / "0"
    originals = wire.parse_messages(b"".join(path.read_bytes() for path in sorted(whole.glob("*.log"))))
    found: dict[int, bytes] = {}
    for original in originals:
        status, answer = root.exchange(
            wire.POLL_MESSAGES,
            wire.consumer() + golden.place_of("orders", "events") + wire.optional_partition(0)
            + struct.pack("<BQIB", wire.POLL_OFFSET, original.offset, 1, 0),
        )  # fmt: skip
        if status == 0:
            found |= {each.offset: each.raw for each in wire.parse_polled(answer).messages}
    lost = [each.offset for each in originals if each.offset not in found]
    assert len(originals) == 120 and len(lost) == 1 and 39 <= lost[0] < 75
    assert all(found[each.offset] == each.raw for each in originals if each.offset not in lost)


def _later_info(data: Path) -> None:
    info = json.loads((data / "info.json").read_text())
    (data / "info.json").write_text(json.dumps(info | {"format_version": 3}))


def _replace(name: str, at: int, content: bytes) -> Damage:
    def damage(data: Path) -> None:
        path = data / name
        before = path.read_bytes()
        path.write_bytes(before[:at] + content + before[at + len(content) :])

    return damage


def _flip(name: str) -> Damage:
    def damage(data: Path) -> None:
        path = data / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return damage


def _format_version_3(data: Path) -> None:
    """With files that look known and are not: nothing of it is touched."""
    _later_info(data)
    partition = data / EVENTS / "0"
    sealed, number = min(partition.glob("*.manifest")), struct.pack("<I", 2)
    content = sealed.read_bytes()
    head = content[:8] + number + b"\x01" + content[13:56]  # compressed
    sealed.write_bytes(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + content[64:])
    sealed.with_suffix(".log").rename(sealed.with_suffix(".blocks"))
    head = b"SHRDOFFS" + struct.pack("<IIQ", 2, 64, 1) + bytes(32)
    (partition / "consumer-offsets").write_bytes(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)))
    shutil.rmtree(partition / "offsets", ignore_errors=True)


LATER: dict[str, tuple[Damage, str]] = {
    "a directory of format version 3": (_format_version_3, "info.json: format version 3 is unknown; this is version 2"),
    "a later info.json": (_later_info, "info.json: format version 3 is unknown; this is version 2"),
    "a later snapshot": (_replace("state.snapshot", 8, b"\x06"), "has format version 6.0, which this program does not"),
}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a later log": (_replace("state.messages", 8, b"\x03"), "has format version 3.0, which this program does not know"),
    "a flip in the log": (_flip("state.messages"), "state.messages is damaged: record"),
    "a flip in the snapshot": (_flip("state.snapshot"), "state.snapshot is damaged: its checksum does not match"),
    "no snapshot": (lambda data: (data / "state.snapshot").unlink(), "state.snapshot is missing"),
}


def test_metadata_of_a_later_version_stop_the_start_with_a_sentence(tmp_path: Path) -> None:
    """They decide what the directories mean, so nothing is served without them; nothing is changed either."""
    original = golden.unpack(VERSIONS[-1], tmp_path)
    for number, (about, (damage, sentence)) in enumerate(LATER.items()):
        data = tmp_path / str(number)
        shutil.copytree(original, data)
        damage(data)
        before = _digests(data)
        server = Server(data, ONE_SHARD)
        server.spawn()
        assert server.wait(60) != 0, about
        assert sentence in server.log(), (about, server.log())
        after = _digests(data)
        assert {name: after.get(name) for name in before} == before, about


def test_a_start_raises_the_format_version_when_nothing_refuses_the_directory(tmp_path: Path) -> None:
    """Metadata that refuse are met first: then an earlier program can still open the directory."""
    original = golden.unpack("v2", tmp_path)
    info = json.loads((original / "info.json").read_text())
    sentence = "format version 1 becomes 2: earlier programs cannot open this directory any more"
    for number, damage in enumerate((_replace("state.snapshot", 8, b"\x04"), _flip("state.messages"))):
        data = tmp_path / str(number)
        shutil.copytree(original, data)
        damage(data)
        before = _digests(data)
        server = Server(data, ONE_SHARD)
        server.spawn()
        assert server.wait(60) != 0 and "state." in server.log() and sentence not in server.log()
        assert _digests(data) == before
    for _ in range(2):
        with Server(original):
            assert json.loads((original / "info.json").read_text()) == info | {"format_version": 2}
    assert Server(original).log().count(sentence) == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("about", DAMAGES)
def test_damaged_or_later_metadata_are_refused_with_a_sentence(version: str, about: str, tmp_path: Path) -> None:
    """What every start does first (that it ends there: the test above, server/test_supervisor.py)."""
    data = golden.unpack(version, tmp_path)
    damage, sentence = DAMAGES[about]
    load_state(data / FILE_NAME)
    damage(data)
    with pytest.raises(LogError, match=sentence):
        stored = read_stored(data / FILE_NAME)
        check_tail(data / FILE_NAME, stored.content)


@pytest.mark.parametrize("command", [("log",), ("log", "--repair", "--yes"), ("state", "--path")])
def test_no_tool_judges_or_changes_a_directory_of_a_later_format_version(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    data = golden.unpack(VERSIONS[-1], tmp_path)
    _format_version_3(data)
    before = _digests(data)
    result = CliRunner().invoke(app, ["doctor", *command, str(data)])
    assert (result.exit_code, "format version 3 is unknown" in result.output) == (2, True), result.output
    with pytest.raises(BackupError, match="format version 3 is unknown"):
        create_backup(data, tmp_path / "backups")
    assert _digests(data) == before


def _digests(data: Path) -> dict[str, str]:
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in data.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_no_version_is_forgotten() -> None:
    assert VERSIONS == ["v1", "v2", "v3", "v4"]
