"""`shardd upgrade check` on the golden directories of every version, damaged and later ones; it changes nothing."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from typer.testing import CliRunner

from shardd.cli import upgrade
from shardd.cli.main import app
from shardd.config.keys import settings_toml
from shardd.config.loader import load_settings
from shardd.log import layout
from shardd.log.imported import write_imported
from shardd.log.offsets_table import BYTES_MAX
from shardd.log.sealing import seal_segment
from shardd.runtime.throttle import Throttle
from tests.crash.fault_control import FaultControl
from tests.support import golden_directory as golden
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.unit.backup_data import DataDirectory

EVENTS = Path("streams/0/topics/0/partitions")


def checked(directory: Path, *options: str) -> tuple[int, str]:
    before = _content(directory)
    result = CliRunner().invoke(app, ["upgrade", "check", str(directory), *options])
    assert _content(directory) == before
    return result.exit_code, result.output


def _content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("version", "would", "back"),
    [
        ("v2", "format version 1, made", "after the first start programs that know only format version 1 refuse it"),
        ("v3", "format version 2, made", "no way back: programs that know only format version 1 and earlier refuse it"),
    ],
)
def test_every_version_opens_and_names_who_could_not_go_back(
    version: str, would: str, back: str, tmp_path: Path
) -> None:
    status, text = checked(golden.unpack(version, tmp_path))
    assert (status, "refused" in text.replace("refuse it", "")) == (0, False), text
    assert would in text and back in text
    settings = golden.description(version).get("settings", {})
    topics = {name.rpartition("/")[0] for name in settings}
    assert f"topics {len(topics)} have settings of their own" in text


def test_what_later_versions_wrote_is_named(tmp_path: Path) -> None:
    data = golden.unpack(golden.versions()[-1], tmp_path)
    marker = data / EVENTS / "1" / "incarnation"
    marker.write_bytes(b"SHRDINC2" + marker.read_bytes()[8:])
    manifest = max((data / EVENTS / "2").glob("*.manifest"))
    content = manifest.read_bytes()
    head = content[:8] + struct.pack("<I", 9) + content[12:56]
    manifest.write_bytes(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + content[64:])
    status, text = checked(data)
    assert status == 1
    assert f"refused: partition 0/0/1: {marker} has format version 2" in text
    assert f"refused: partition 0/0/2: {manifest}: its version is 9" in text


def test_a_later_format_and_damaged_metadata_refuse_the_start(tmp_path: Path) -> None:
    data = golden.unpack(golden.versions()[-1], tmp_path)
    snapshot = bytearray((data / "state.snapshot").read_bytes())
    snapshot[len(snapshot) // 2] ^= 1
    (data / "state.snapshot").write_bytes(snapshot)
    status, text = checked(data)
    assert (status, "state.snapshot is damaged" in text) == (1, True)
    info = data / "info.json"
    info.write_text(info.read_text().replace('"format_version":2', '"format_version":3'))
    status, text = checked(data)
    assert (status, "format version 3 is unknown" in text) == (1, True), text


def test_directories_without_data_or_without_their_last_file(tmp_path: Path) -> None:
    assert checked(tmp_path)[0] == 0
    assert "no data" in checked(tmp_path)[1]
    data = golden.unpack(golden.versions()[-1], tmp_path)
    (data / "info.json").unlink()
    status, text = checked(data)
    assert (status, "has no info.json, but data" in text) == (1, True)
    assert CliRunner().invoke(app, ["upgrade", "check", str(tmp_path / "none")]).exit_code == 2


def test_a_directory_of_iggy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "log").write_bytes(b"")
    status, text = checked(tmp_path)
    assert (status, "the first start imports it" in text, "keep a copy" in text) == (0, True, True)


def test_names_that_requests_may_use_are_told_unless_a_running_server_knows_them(tmp_path: Path) -> None:
    data = golden.unpack(golden.versions()[-1], tmp_path)
    text = checked(data)[1]
    assert "http.allowed_hosts" in text and "metrics.allowed_hosts" in text
    running = data / "runtime" / "current_config.toml"
    running.parent.mkdir(exist_ok=True)
    early = '[http]\nenabled = true\naddress = "[::1]:3000"\n[metrics]\nenabled = {}\naddress = "{}"\n'
    for enabled, address, told in (
        ("true", "127.0.0.1:9464", True),
        ("true", "0.0.0.0:9464", False),
        ("false", "127.0.0.1:1", False),
    ):
        running.write_text(early.format(enabled, address))
        text = checked(data)[1]
        assert "http.address is [::1]:3000, of this host alone" in text and "http.allowed_hosts" in text
        assert ("metrics.allowed_hosts" in text) == told
    running.write_text(settings_toml(load_settings(None, {"SHARDD_HTTP_ENABLED": "true"}).settings))
    assert "allowed_hosts" not in checked(data)[1]


def test_settings_that_are_given_decide_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = golden.unpack(golden.versions()[-1], tmp_path)
    config = tmp_path / "server.toml"
    config.write_text(
        '[data_maintenance.messages]\ncleaner_enabled = false\n[http]\nenabled = true\nallowed_hosts = ["broker"]\n'
    )
    text = checked(data)[1]
    assert "settings: the defaults; neither a file" in text
    assert "topics 2 let stored offsets hold" in text and "http.allowed_hosts" in text

    text = checked(data, "--config", str(config))[1]
    assert f"settings: those of {config}, and the defaults" in text
    assert "let stored offsets hold" not in text  # a server without a cleaner removes nothing
    assert "http.allowed_hosts" not in text and "metrics.allowed_hosts" in text

    monkeypatch.setenv("SHARDD_CONFIG_PATH", str(config))
    monkeypatch.setenv("SHARDD_METRICS_ADDRESS", "0.0.0.0:9464")
    monkeypatch.setenv("IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED", "true")
    text = checked(data)[1]
    variables = "IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED, SHARDD_METRICS_ADDRESS"
    assert f"{variables}, and the defaults" in text and str(config) in text
    assert "topics 2 let stored offsets hold" in text and "allowed_hosts" not in text


def test_settings_that_are_wrong_are_refused_with_their_sentences(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[system.topic]\nmax_size = "1 GiBs"\n')
    status, text = checked(tmp_path, "--config", str(config))
    assert status == 2 and "system.topic.max_size" in text and str(config) in text


@pytest.mark.parametrize("name", [layout.INCARNATION, layout.CONSUMER_OFFSETS, layout.IMPORTED, layout.PRODUCERS])
def test_a_side_file_that_the_device_does_not_give_refuses_nothing(tmp_path: Path, name: str) -> None:
    data = DataDirectory(tmp_path / "data")
    write_imported(data.partition(0), 5)
    (data.partition(0) / layout.PRODUCERS).write_bytes(bytes(100))
    assert seal_segment(data.partition(0), 0, data.incarnation(0), Throttle())[0] > 0
    control = FaultControl(tmp_path)
    control.arm("read", f"partitions/0/{name}$", 1, errno.EIO, for_ever=True)
    command = [sys.executable, "-m", "shardd", "upgrade", "check", str(data.path)]
    said = subprocess.run(command, env=os.environ | control.environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said
    [line] = [each for each in said.stdout.splitlines() if "Input/output error" in each]
    assert f"partitions/0/{name}" in line and "`shardd doctor log`" in line
    assert "partitions 2," in said.stdout


def test_a_marker_that_cannot_be_read_and_that_no_manifest_proves_is_refused(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    control = FaultControl(tmp_path)
    control.arm("read", f"partitions/0/{layout.INCARNATION}$", 1, errno.EIO, for_ever=True)
    command = [sys.executable, "-m", "shardd", "upgrade", "check", str(data.path)]
    said = subprocess.run(command, env=os.environ | control.environment, capture_output=True, text=True, check=False)
    assert said.returncode == 1 and "no manifest tells the incarnation" in said.stdout, said


def test_a_table_of_offsets_that_cannot_be_told_costs_what_a_start_makes_of_it(tmp_path: Path) -> None:
    """Messages are served (golden/test_directories.py, crash/test_file_faults.py), so nothing is refused."""
    data = golden.unpack(golden.versions()[-1], tmp_path)
    later, large = (data / EVENTS / number / layout.CONSUMER_OFFSETS for number in ("0", "1"))
    content = bytearray(later.read_bytes())
    content[8:12] = struct.pack("<I", 3)
    head = bytes(content[:56])
    content[56:64] = struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
    later.write_bytes(content)
    with large.open("r+b") as file:
        file.truncate(BYTES_MAX + 1)
    status, text = checked(data)
    assert (status, "refused: " in text) == (0, False), text
    for path in (later, large):
        [line] = [each for each in text.splitlines() if str(path) in each]
        assert "messages are served" in line and "CANNOT_READ_FILE (10002)" in line
    with Server(data, ONE_SHARD) as server, wire.connect(server.address) as root:
        for partition in (0, 1):
            assert root.read_all("orders", "events", partition)
            with pytest.raises(wire.StatusError, match="10002"):
                root.get_offset("orders", "events", partition)


def test_a_link_in_the_place_of_the_table_is_refused_like_by_a_start(tmp_path: Path) -> None:
    data = golden.unpack(golden.versions()[-1], tmp_path)
    table = data / EVENTS / "0" / layout.CONSUMER_OFFSETS
    table.rename(tmp_path / "elsewhere")
    table.symlink_to(tmp_path / "elsewhere")
    status, text = checked(data)
    assert status == 1 and f"refused: partition 0/0/0: {table}" in text, text
    with Server(data, ONE_SHARD) as server, wire.connect(server.address) as root:
        with pytest.raises(wire.StatusError):
            root.poll("orders", "events", 0)
        assert root.read_all("orders", "events", 1)


def test_each_file_beside_a_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDirectory(tmp_path / "data")
    read: list[tuple[str, Path]] = []
    for name in ("read_incarnation", "read_imported", "read_settled_table"):
        real = getattr(upgrade, name)

        def counted(path: Path, *others: object, name: str = name, real: Callable[..., object] = real) -> object:
            read.append((name, path))
            return real(path, *others)

        monkeypatch.setattr(upgrade, name, counted)
    assert checked(data.path)[0] == 0
    assert len(read) == len(set(read)) == 6


def test_a_segment_of_an_unknown_layout_without_a_known_log_is_refused(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    seal_segment(data.partition(0), 0, data.incarnation(0), Throttle())
    manifest = layout.segment_manifest(data.partition(0), 0)
    content = bytearray(manifest.read_bytes())
    content[12] |= 4
    content[56:64] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(content[:56])))
    manifest.write_bytes(content)
    layout.segment_log(data.partition(0), 0).rename(manifest.with_suffix(".remote"))
    status, text = checked(data.path)
    assert status == 1 and f"refused: partition 0/0/0: {manifest}" in text, text
    assert "partitions 2," in text


def test_manifests_that_the_device_does_not_give_refuse_nothing(tmp_path: Path) -> None:
    """A start scans their logs (adr/0108)."""
    data = DataDirectory(tmp_path / "data")
    assert seal_segment(data.partition(0), 0, data.incarnation(0), Throttle())[0] > 0
    control = FaultControl(tmp_path)
    control.arm("read", ".manifest$", 1, errno.EIO, for_ever=True)
    command = [sys.executable, "-m", "shardd", "upgrade", "check", str(data.path)]
    said = subprocess.run(command, env=os.environ | control.environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "manifests 1 are damaged or cannot be read: their logs are scanned" in said.stdout
