"""Every command with hostile values of each option's type ends with one sentence and a documented status."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


COMMANDS = commands(LEFT_OUT)


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
def lines(draw: st.DrawFn) -> list[str]:
    words = draw(st.sampled_from(sorted(COMMANDS)))
    line = [*words]
    for parameter in COMMANDS[words]:
        if parameter.param_type_name == "argument":
            line += draw(st.lists(values(parameter), min_size=int(parameter.required), max_size=1))
        elif parameter.name in ("help", "url", "context", "follow", "version"):
            continue
        elif draw(st.integers(0, 3)) == 0:
            name = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
            line += [name] if parameter.is_flag else [name, draw(values(parameter))]
    return [*line, "--no-follow"] if words == ("message", "tail") else line


@pytest.mark.parametrize("by_typer", [False, True], ids=["direct", "typer"])
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines(), typed=st.sampled_from(["", "secret\n", "x\n\xffy\n", "{}\n", '{"payload":"x","partition":-1}\n']))
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
