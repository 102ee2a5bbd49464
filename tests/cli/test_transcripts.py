"""Every command of a user prints what its transcript says, for people and for programs, and ends with its status."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from shardd.cli.direct import direct
from shardd.cli.main import app
from tests.cli.transcript import DIRECTORY, Shell, replay
from tests.support.server import ONE_SHARD, Server

BENCH = "bench"
TRANSCRIPTS = sorted(path.stem for path in DIRECTORY.glob("*.txt"))


@pytest.fixture(scope="module", params=["direct", "typer"])
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, way: str) -> Iterator[Server]:
    """One for each way: numbers are not given twice."""
    with Server(tmp_path_factory.mktemp(way) / "data", ONE_SHARD) as made:
        yield made


@pytest.fixture
def emptied(server: Server, tmp_path: Path, way: str) -> Shell:
    """A server without streams, whatever the test before left."""
    shell = Shell(server.address, tmp_path, by_typer=way == "typer")
    for stream in json.loads(shell.run("shardd stream list -o json").replace("MICROSECONDS", "0")):
        shell.run(f"shardd stream delete {stream['name']} --yes")
    return shell


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != BENCH])
def test_commands_print_what_the_transcript_says(name: str, emptied: Shell) -> None:
    require_as_written(name, emptied)


@pytest.mark.parametrize("way", ["typer"], indirect=True, scope="module")
def test_bench_prints_what_its_transcript_says(emptied: Shell) -> None:
    """Typer is asked for all of it, so that both ways are the same one."""
    assert direct([BENCH, "compare"]) is None
    require_as_written(BENCH, emptied)


def require_as_written(name: str, emptied: Shell) -> None:
    expected = (DIRECTORY / f"{name}.txt").read_text()
    assert replay(expected, emptied) == expected
    assert "Traceback" not in expected


def every_command(command: Any, words: tuple[str, ...] = ("shardd",)) -> Iterator[str]:
    if not hasattr(command, "list_commands"):
        yield " ".join(words)
        return
    context = typer.Context(command, info_name=words[-1])
    for name in command.list_commands(context):
        if words == ("shardd", "bench") and name != "compare":
            continue  # kinds with two names each, of the same words: bench.txt has one of each sort
        yield from every_command(command.get_command(context, name), (*words, name))


def test_every_command_has_its_transcript() -> None:
    text = "".join((DIRECTORY / f"{name}.txt").read_text() for name in TRANSCRIPTS)
    run = re.findall(r"^\$ (?:[A-Z_]+=\S* )*(.*)$", text, re.MULTILINE)
    commands = list(every_command(typer.main.get_command(app)))
    assert "shardd topic settings set" in commands
    assert [each for each in commands if not any(f"{line} ".startswith(f"{each} ") for line in run)] == []


def test_contexts_are_for_their_owner_alone(emptied: Shell) -> None:
    emptied.run("shardd context create home --url shardd://ADDRESS")
    emptied.run("SHARDD_URL= shardd login -u iggy --password-stdin", "iggy\n")
    path = emptied.home / ".config/shardd/contexts.toml"
    assert "token" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
