"""Imported streams on a real server: every native reader gets them, and writers go on behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.migration import liftbridge_source as lb
from tests.migration.liftbridge_source import EPOCH_NS, Entry
from tests.support.server import ONE_SHARD, Server

NAMESPACE = "liftbridge-default"
COMMAND = (sys.executable, "-m", "shardd")


def run(*arguments: str, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    done = subprocess.run([*COMMAND, *arguments], check=False, capture_output=True, text=True, env=kept | variables)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def imported(source: Path, data: Path, *options: str, status: int = 0) -> Any:
    done = run(
        "import", "liftbridge", str(source), "--data", str(data), "--with-default-root-credentials", "--json", *options,
        status=status,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Gaps inside, a dense one, one whose end has a gap, one with nothing but an end, cursors."""
    directory = tmp_path / "source"
    sparse = [Entry(n, b"%d" % n, b"key", {"h": b"v"}, timestamp_ns=EPOCH_NS + n * 1_000) for n in (2, 3, 7, 20)]
    lb.write_stream(directory, "sparse", {2: sparse[:3], 20: sparse[3:]})
    lb.write_stream(directory, "dense", {0: [Entry(n, b"%d" % n, subject="d") for n in range(5)]})
    lb.write_stream(
        directory, "falling", {0: [Entry(n, b"%d" % n, timestamp_ns=EPOCH_NS - n * 9_000) for n in range(5)]}
    )
    lb.write_stream(directory, "ended", {0: [Entry(0, b"0")], 8: []})
    lb.write_stream(directory, "gone", {30: []})
    lb.write_stream(directory, "__cursors", {0: [lb.cursor("sparse", 0, "c", 7, 4)]})
    return directory


def test_every_reader_gets_what_was_imported_and_writers_go_on_behind_it(source: Path, tmp_path: Path) -> None:
    report = imported(source, tmp_path / "data")
    assert {each["name"]: each["outcome"] for each in report["streams"]} == dict.fromkeys(
        ["__cursors", "dense", "ended", "falling", "gone", "sparse"], "imported"
    )
    wanted = {
        "sparse": [2, 3, 7, 20, 21, 22],
        "dense": [0, 1, 2, 3, 4, 5, 6],
        "falling": [0, 1, 2, 3, 4, 5, 6],
        "ended": [0, 8, 9],
        "gone": [30, 31],
        "__cursors": [4, 5, 6],
    }
    server = Server(tmp_path / "data", ONE_SHARD)
    for added in (1, 2):  # the second time what the first start has made of it is opened
        with server:
            url = f"shardd://iggy:iggy@{server.address}"
            names = list(wanted) if added == 1 else ["sparse", "ended"]
            for name in names:
                run("produce", NAMESPACE, name, "-p", "0", "--quiet", "--whole", __file__, SHARDD_URL=url)
            for name in names:
                out = run("consume", NAMESPACE, name, "-o", "earliest", "--json", SHARDD_URL=url).stdout
                found = [json.loads(line)["offset"] for line in out.splitlines()]
                assert found == wanted[name][: len(wanted[name]) - 2 + added], name
    told = [line for line in server.log().splitlines() if "WARN" in line and "waits for the device" not in line]
    assert "damage" not in server.log().lower()
    assert [line for line in told if "the device answers again" not in line] == []
    doctor = run("doctor", "log", str(tmp_path / "data"))
    assert "damaged ranges 0, messages in them 0" in doctor.stdout


def test_the_first_user_is_made_once_and_a_second_import_leaves_out_what_is_there(source: Path, tmp_path: Path) -> None:
    done = run("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), "--stream", "dense")
    assert "Generated root user password: " in done.stderr
    assert done.stdout == (
        "dense: partitions 1, messages 5, subject d (messages)\nstreams imported: 1, messages 5; left out: 0\n"
    )
    again = run("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), "--stream", "dense", status=3)
    assert again.stderr == "" and "left out: there is a topic liftbridge-default/dense already" in again.stdout


def test_a_running_server_and_wrong_options_are_refused_with_a_sentence(source: Path, tmp_path: Path) -> None:
    with Server(tmp_path / "data", ONE_SHARD):
        done = run("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), status=1)
        assert "is in use by another server" in done.stderr
    done = run("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), "--subject", "dense", status=2)
    assert done.stderr == "shardd: --subject: 'dense' is no STREAM=VALUE\n"
    done = run("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), "--stream", "nope", status=1)
    assert "has no stream 'nope'" in done.stderr
    variables = {"LIFTBRIDGE_ENCRYPTION_KEY": "short"}
    done = run("import", "liftbridge", str(source), "--data", str(tmp_path / "data"), status=1, **variables)
    assert "16 or 32" in done.stderr


def test_no_server_starts_on_a_directory_in_which_an_import_was_interrupted(source: Path, tmp_path: Path) -> None:
    imported(source, tmp_path / "data", "--stream", "dense")
    info = tmp_path / "data/info.json"
    info.write_text(info.read_text().replace("shardd-data", "shardd-import"))
    with pytest.raises(RuntimeError, match="an import into this directory did not end"):
        Server(tmp_path / "data", ONE_SHARD).start()
    imported(source, tmp_path / "data", "--stream", "ended")
    with Server(tmp_path / "data", ONE_SHARD):
        pass
