"""Every command with hostile values of each option's type ends with one sentence and a documented status."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shardd.cli.main import app
from shardd.client import SyncClient
from tests.cli.transcript import invoked
from tests.support.command_tree import commands
from tests.support.generated import examples
from tests.support.server import ONE_SHARD, Server

STATUSES = {0, 1, 2, 3, 4, 5, 6, 130, 141}
NUMBERS = [
    "0",
    "-1",
    "1",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "1" + "0" * 400,
    "1e-300",
    "1e300",
    "inf",
    "-inf",
    "nan",
    "0.5",
    "",
    "x",
    "٣",
    "1_000",
    "0x10",
    "9" * 5000,
    "2\N{SUPERSCRIPT TWO}",
]
TEXTS = [
    "",
    "s",
    "t",
    "0",
    "id:0",
    "id:",
    "id:-1",
    "id:99999999999",
    "name:",
    "name:s",
    "x" * 300,
    "\udcff",
    "a\x00b",
    "\x1b[2J",
    "é" * 128,
    "@",
    "@-1h",
    "@-1e9h",
    "@99999999999999999999",
    "@0001-01-01",
    "@9999-12-31T23:59:59-23:59",
    "-1",
    "-0",
    "--",
    "99999999999999999999999",
    "(",
    "%",
    "\\",
    "%q",
    "\\q",
    "retention=",
    "=",
    "a=b",
    "never",
    "1ms",
    "9" * 30 + "d",
    "s/t:read_topic",
    ":",
    "/",
    "s:",
    "١s",
    "9" * 5000,
    "2\N{SUPERSCRIPT TWO}",
]
LEFT_OUT = {
    "serve",
    "bench",
    "spark",
    "pipeline",
    "top",
    "drain",
    "tls",
    "backup",
    "import",
    "doctor",
    "upgrade",
    "config",
}
"""They ask no server, run for long, or need programs of their own; `top` and `tail` do not end."""

Tree = dict[tuple[str, ...], list[Any]]
COMMANDS = commands(LEFT_OUT)
HEAVY = {words: found for words, found in commands().items() if words[0] in ("serve", "bench", "spark", "pipeline")}
"""With no server to ask, and settings that are not there, none of them begins its work."""
_TOP: Any = typer.main.get_command(app)
BENCH: list[Any] = _TOP.get_command(typer.Context(_TOP, info_name="shardd"), "bench").params


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with Server(tmp_path_factory.mktemp("hostile") / "data", ONE_SHARD) as server:
        yield server.address, tmp_path_factory.mktemp("home")


def values(parameter: Any) -> st.SearchStrategy[str]:
    kind = parameter.bare_type
    if kind in (int, float):
        return st.sampled_from(NUMBERS)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from([*(each.value for each in kind), "", "other"])
    if kind is Path:
        return st.sampled_from(["/nowhere/file", "/dev/null", "", "/", "a\x00b"])
    return st.sampled_from(TEXTS)


@st.composite
def words_of(draw: st.DrawFn, parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        return draw(st.lists(values(parameter), min_size=int(parameter.required), max_size=1))
    if parameter.name in ("help", "url", "context", "follow", "version") or draw(st.integers(0, 3)):
        return []
    name = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
    return [name] if parameter.is_flag else [name, draw(values(parameter))]


@st.composite
def workloads(draw: st.DrawFn) -> list[str]:
    """Options that stand behind `bench` itself."""
    return [word for parameter in BENCH for word in draw(words_of(parameter))]


@st.composite
def lines(draw: st.DrawFn, tree: Tree) -> list[str]:
    words = draw(st.sampled_from(sorted(tree)))
    line = [*words]
    for parameter in tree[words]:
        line += draw(words_of(parameter))
    return [*line, "--no-follow"] if words == ("message", "tail") else line


@pytest.mark.parametrize("by_typer", [False, True], ids=["direct", "typer"])
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    line=lines(COMMANDS),
    typed=st.sampled_from(["", "secret\n", "x\n\xffy\n", "{}\n", '{"payload":"x","partition":-1}\n']),
)
def test_hostile_values_are_one_sentence(place: tuple[str, Path], by_typer: bool, line: list[str], typed: str) -> None:
    address, home = place
    with SyncClient(f"shardd://iggy:iggy@{address}") as client:
        if not any(each.name == "s" for each in client.streams()):
            client.create_stream("s")
        if client.topic("s", "t") is None:
            client.create_topic("s", "t")
    url = f"shardd://iggy:iggy@{address}"
    variables = {"SHARDD_URL": url, "HOME": str(home), "SHARDD_TCP_ADDRESS": address, "XDG_CONFIG_HOME": str(home)}
    before = Path.cwd()
    os.chdir(home)
    try:
        said, status = invoked(line, typed, variables, by_typer)
    finally:
        os.chdir(before)
    assert status in STATUSES, said
    assert "Traceback" not in said


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines(HEAVY), workload=workloads(), named=st.booleans())
def test_hostile_values_of_commands_that_run_long_are_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, line: list[str], workload: list[str], named: bool
) -> None:
    """`named`: who asks is known, so that a pipeline comes to its other options."""
    home = tmp_path_factory.getbasetemp()
    who = {"SHARDD_USERNAME": "iggy", "SHARDD_PASSWORD": "iggy"} if named else {}
    nobody = {"SHARDD_URL": "shardd://iggy:iggy@127.0.0.1:1?deadline=1", "SHARDD_TCP_ADDRESS": "127.0.0.1:1"}
    variables = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), **nobody, **who}
    if line[0] == "serve":
        line = ["serve", *line[1:], "--config", "/nowhere/settings.toml"]
    if line[0] == "bench":
        assume(not any("\0" in word for word in (*line, *workload)))  # no process is given such a word
        way = line[2:3] + (["--server-address", "127.0.0.1:1"] if line[2] in ("tcp", "websocket") else [])
        line = ["bench", *workload, line[1], *way, *line[3:]]
    said, status = invoked(line, "", variables, by_typer=True)
    assert status in STATUSES, said
    assert "Traceback" not in said
