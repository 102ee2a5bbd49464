"""Names that somebody else chose reach a terminal as text: no escape sequence, no line break, no other direction."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from shardd.client import SyncClient
from tests.cli.transcript import Shell
from tests.support.server import ONE_SHARD, Server

NAME = "a\x1b[2Jb\nc\rd\te\x9b31mf\u202eg\x7f\u2028h"
SHOWN = r"a\x1b[2Jb\nc\rd\te\x9b31mf\u202eg\x7f\u2028h"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with Server(tmp_path_factory.mktemp("hostile") / "data", ONE_SHARD) as server:
        with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
            client.create_stream(NAME)
            client.create_topic(NAME, NAME)
            client.create_group(NAME, NAME, NAME)
            client.create_user(NAME, "secret")
            client.create_token(NAME)
        yield Shell(server.address, tmp_path_factory.mktemp("home"))


LINES = (
    "stream list", "stream get id:0", "stream delete id:0", "stream purge id:0", "topic list id:0",
    "topic get id:0 id:0", "topic delete id:0 id:0", "topic purge id:0 id:0", "partition delete id:0 id:0",
    "group list id:0 id:0", "group get id:0 id:0 id:0", "group delete id:0 id:0 id:0", "user list", "user get id:1",
    "user delete id:1", "token list", "retention enable --dry-run", "stream get no", "group get id:0 id:0 no",
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_hostile_name_is_shown_escaped(shell: Shell, line: str) -> None:
    said = shell.run(f"shardd {line}")
    assert all(each.isprintable() for each in said.splitlines()), said
    assert SHOWN in said or "[3]" in said or line.startswith("retention")


@pytest.mark.parametrize("line", ["stream list -o json", "topic list id:0 -o jsonl", "user get id:1 -o json"])
def test_hostile_name_stays_itself_for_programs_and_harmless_for_terminals(shell: Shell, line: str) -> None:
    said = shell.run(f"shardd {line}").replace("MICROSECONDS", "0")
    assert said.endswith("\n") and said[:-1].isprintable()
    found = json.loads(said)
    assert NAME in ([each["name"] for each in found] if isinstance(found, list) else [found["name"]])
