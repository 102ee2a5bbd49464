"""`shardd doctor state` on directories that are whole, damaged, torn, or no directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME
from tests.unit.test_metadata_snapshot import RECORDS, compact, write_log


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", "state", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_log(tmp_path / FILE_NAME)
    compact(tmp_path / FILE_NAME, 20)
    return tmp_path


def test_a_whole_state_is_shown_and_nothing_is_changed(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    status, text = doctor("--path", str(directory))
    assert status == 0, text
    assert "covers records up to 20" in text
    assert f"records 21 to {RECORDS} (10)" in text
    assert "streams 3, topics 2, partitions 10, consumer groups 1, users 2, tokens 1" in text
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_settings_name_the_directory(directory: Path, tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f'[system]\npath = "{directory}"\n')
    assert doctor("--config", str(config))[0] == 0


def test_a_torn_tail_is_a_finding_and_no_damage(directory: Path) -> None:
    with (directory / FILE_NAME).open("ab") as file:
        file.write(b"x" * 50)
    status, text = doctor("--path", str(directory))
    assert status == 0, text
    assert f"50 bytes of an unfinished record {RECORDS + 1}" in text


@pytest.mark.parametrize("name", [FILE_NAME, SNAPSHOT_NAME])
@pytest.mark.parametrize("position", [3, 20, 60, 110])
def test_a_flipped_byte_anywhere_is_damage(directory: Path, name: str, position: int) -> None:
    data = bytearray((directory / name).read_bytes())
    data[position] ^= 1
    (directory / name).write_bytes(data)
    status, text = doctor("--path", str(directory))
    assert status == 1
    assert text.count("damage:") == 1, text
    assert name in text


def test_a_missing_snapshot_is_damage(directory: Path) -> None:
    (directory / SNAPSHOT_NAME).unlink()
    status, text = doctor("--path", str(directory))
    assert status == 1
    assert "begins behind record 20" in text


def test_no_directory_and_wrong_settings_are_told(tmp_path: Path) -> None:
    assert doctor("--path", str(tmp_path / "missing"))[0] == 2
    config = tmp_path / "server.toml"
    config.write_text("[system]\npth = 1\n")
    assert doctor("--config", str(config))[0] == 2
