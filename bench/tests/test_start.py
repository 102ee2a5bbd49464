"""Starts that are measured: with the settings of the run, and a server that does not answer is not left behind."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import psutil
import pytest

import bench.__main__ as command
from bench import start
from bench.lines import Setup

ANSWERS = """
import json, os, pathlib, socket
host, _, port = os.environ["SHARDD_TCP_ADDRESS"].rpartition(":")
pathlib.Path("variables.json").write_text(json.dumps(dict(os.environ)))
with socket.create_server((host, int(port))) as listener:
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(bytes(8))
"""


def program(text: str) -> str:
    return shlex.join([sys.executable, "-c", text])


def test_a_server_has_the_settings_of_the_run_but_its_own_place(tmp_path: Path) -> None:
    settings = {"SHARDD_SYSTEM_PARTITION_ACK": "durable", "SHARDD_SYSTEM_PATH": "/nowhere"}
    started = start.Started(program(ANSWERS), tmp_path / "data", 1, settings)
    started.stop()
    variables = json.loads((tmp_path / "variables.json").read_text())
    assert variables["SHARDD_SYSTEM_PARTITION_ACK"] == "durable"
    assert variables["SHARDD_SYSTEM_PATH"] == str(tmp_path / "data")


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "import time; time.sleep(600)"])
def test_a_server_that_does_not_answer_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(start, "_TIMEOUT_S", 2.0)
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="no answer"):
        start.Started(program(text), tmp_path / "data", 1)
    assert set(psutil.Process().children()) <= before


def test_a_line_has_the_level_of_its_name_whatever_else_is_set() -> None:
    pairs = ["SHARDD_SYSTEM_PARTITION_ACK=memory", "SHARDD_A=b=c"]
    assert command.settings_of(Setup.WRITTEN, pairs) == {"SHARDD_SYSTEM_PARTITION_ACK": "memory", "SHARDD_A": "b=c"}
    assert command.settings_of(Setup.DURABLE, pairs)["SHARDD_SYSTEM_PARTITION_ACK"] == "durable"


def test_a_setting_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--lines", "start-memory", "--set", "SHARDD_A"]) == 2
    assert "SHARDD_A" in capsys.readouterr().err
