"""`shardd backup` as a person sees it: exit status, sentences, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import layout
from tests.unit import backup_data
from tests.unit.backup_data import DataDirectory


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    backup_data.quick(monkeypatch)


def run(*arguments: str | Path, status: int = 0) -> str:
    """Both outputs of a command that ends with this status."""
    result = CliRunner().invoke(app, ["backup", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def figures(*arguments: str | Path, status: int = 0) -> dict[str, Any]:
    answer = CliRunner().invoke(app, ["backup", *map(str, arguments), "--json"])
    assert answer.exit_code == status, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_a_backup_from_the_first_command_to_the_restored_directory(tmp_path: Path) -> None:
    data, backups = DataDirectory(tmp_path / "data"), tmp_path / "backups"
    made = figures("create", backups, "--data", data.path)
    assert (made["messages"], made["linked"]["segments"], made["copied"]["segments"]) == (64, 2, 2)
    again = figures("create", backups, "--data", data.path, "--rate-bytes-per-second", "10 MiB")
    assert (again["shared"]["segments"], again["base"]) == (2, Path(made["path"]).name)
    assert [each["path"] for each in figures("list", backups)["backups"]] == [made["path"], again["path"]]
    assert figures("verify", made["path"])["damage"] == []
    assert run("verify", made["path"]).endswith("whole\n")
    assert figures("restore", made["path"], tmp_path / "new")["data"] == str(tmp_path / "new")
    assert "not an empty directory" in run("restore", made["path"], tmp_path / "new", status=1)


def test_damage_has_an_exit_status_and_a_sentence(tmp_path: Path) -> None:
    data, backups = DataDirectory(tmp_path / "data"), tmp_path / "backups"
    path = Path(figures("create", backups, "--data", data.path)["path"])
    log = layout.segment_log(layout.partition_directory(path, 0, 0, 1), 0)
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    assert f"damage: {log}: its digest does not match" in run("verify", path, status=1)
    assert figures("verify", path, status=1)["damage"]
    assert str(log) in run("restore", path, tmp_path / "new", status=1)
    (path / "backup.json").write_text("{}")
    assert "damage: " in run("list", backups, status=1)
    assert "damaged" in run("verify", path, status=1)


def test_partitions_that_are_left_out_have_an_exit_status(tmp_path: Path) -> None:
    data, backups = DataDirectory(tmp_path / "data"), tmp_path / "backups"
    (data.partition(1) / layout.INCARNATION).unlink()
    assert "left out: " in run("create", backups, "--data", data.path, status=3)
    (path,) = backups.glob("*Z")
    assert "left out: " in run("verify", path, status=3)
    assert "left out: " in run("restore", path, tmp_path / "new", status=3)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("create", "b", "--data", "nothing"), 1, "no data directory"),
        (("create", "b", "--data", "data", "--full", "--base", "b"), 2, "exclude each other"),
        (("create", "b", "--data", "data", "--rate-bytes-per-second", "many"), 2, "--rate-bytes-per-second"),
        (("create", "b", "--data", "data", "--base", "b"), 1, "no complete backup"),
        (("verify", "b"), 1, "no complete backup"),
        (("restore", "b", "c"), 1, "no complete backup"),
        (("list", "b"), 2, "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], status: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    output = run(*arguments, status=status)
    assert sentence in output
    assert output.startswith("shardd: ")
    assert output.count("\n") == 1
