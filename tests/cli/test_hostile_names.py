"""Names that somebody else chose reach a terminal as text: no escape sequence, no line break, no other direction. Every
command of the tree is tried, or has a reason."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from shardd.client import SyncClient
from shardd.protocol.codes import Code
from tests.cli.test_processes import SHARDD
from tests.cli.transcript import Shell
from tests.migration.liftbridge_source import Entry, write_stream
from tests.support import wire
from tests.support.command_tree import commands
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

NAME = "a\x1b[2Jb\nc\rd\te\x9b31mf\u202eg\x7f\u2028h"
SHOWN = r"a\x1b[2Jb\nc\rd\te\x9b31mf\u202eg\x7f\u2028h"
MADE: Final = NAME + "made"
LEFT_OUT: Final = frozenset({"bench"})  # topics of its own, named by the program
REASONS: Final = {
    "serve": "begins a server",
    "ping": "knows an address",
    "login": "knows what the user has typed",
    "logout": "knows a context of the user's own",
    "drain": "ends the server, knows its directory",
    "completion": "prints a script of the program",
    "snapshot": "writes a file that the user names",
    "debug bundle": "writes a file that the user names",
    "config show": "prints the user's own settings",
    "config set": "knows what the user has typed",
    "config reload": "knows the settings",
    "tls reload": "knows the settings",
    "spark doctor": "knows the machine",
    "pipeline doctor": "knows the machine",
    "pipeline sql": "needs Spark; prints rows as a table of Spark",
    "pipeline vacuum": "knows a table that the user names",
    "pipeline latency": "reads files of the user's own bench",
    "pipeline replay": "reads an archive; its names are those of the source, in JSON",
    "consume": "prints messages as they are",
    "message tail": "prints messages as they are",
    "message export": "writes messages for programs",
    "backup restore": "needs a backup of its own: `backup verify` prints the same sentences",
}
_SPARK: Final = "--servers ADDRESS --option username=iggy --option password=iggy"
_TOPIC: Final = "id:0 id:0"
HARMLESS: Final = "fl\u00fcge.2026-11_a"
# "touched" is in names that a shell would carry out, or take apart
ACTIVE: Final = (
    "$(touched)", "\\$(touched)", "`touched`", "\\`touched`", "'; touched; '", '"; touched; "', '\\"; touched; \\"',
    "a touched", "touched;", "touched*", "~touched", "--touched", "=touched", "touched\\", HARMLESS,
)  # fmt: skip
WAIT_S: Final = 60.0
# by command: its lines, in which each name is a quoted word
CASES: Final = {
    "top": ("--once --interval 0.1", "--once --interval 0.1 --json"),
    "produce": (f"{_TOPIC} --dry-run", "NAME no --dry-run"),
    "lag": (f"{_TOPIC} id:0", f"{_TOPIC} NAME", f"{_TOPIC} no"),
    "stats": ("",),
    "backup create": ("HOME/backups --data DATA", "HOME/backups --data DATA --json"),
    "backup verify": ("HOME/no",),
    "backup list": ("HOME", "HOME --json"),
    "client list": ("",),
    "client get": ("1", "9"),
    "client me": ("",),
    "context create": ("NAME --url shardd://localhost",),
    "context list": ("", "-o json"),
    "context use": ("no", "NAME"),
    "context delete": ("no", "NAME"),
    "doctor state": ("--path DATA",),
    "doctor log": ("DATA",),
    "doctor root-password": ("--path DATA",),
    "group list": (_TOPIC,),
    "group get": (f"{_TOPIC} id:0", f"{_TOPIC} no"),
    "group create": (f"{_TOPIC} MADE", f"{_TOPIC} NAME", f"{_TOPIC} MADE -o json"),
    "group delete": (f"{_TOPIC} id:0", f"{_TOPIC} MADE --yes", f"{_TOPIC} MADE"),
    "group seek": (f"{_TOPIC} id:0 --to-latest --dry-run", f"{_TOPIC} id:0 --to-latest"),
    "import liftbridge": (
        "HOME/liftbridge --data HOME/imported --dry-run",
        "HOME/liftbridge --data HOME/imported --dry-run --json",
        "HOME/liftbridge --data HOME/imported --with-default-root-credentials",
    ),
    "message import": (f"{_TOPIC} --dry-run",),
    "message count": (_TOPIC, "NAME no"),
    "offset list": (f"{_TOPIC}", f"{_TOPIC} id:0", f"{_TOPIC} NAME", f"{_TOPIC} --unused"),
    "offset get": (f"{_TOPIC} id:0 0", f"{_TOPIC} NAME 0", f"{_TOPIC} no 0"),
    "offset update": (f"{_TOPIC} id:0 0 0", f"{_TOPIC} NAME 0 0", f"{_TOPIC} no 0 0"),
    "offset delete": (f"{_TOPIC} id:0 0 --dry-run", f"{_TOPIC} NAME 0", f"{_TOPIC} --unused --dry-run"),
    "partition list": (_TOPIC,),
    "partition create": (_TOPIC, "NAME no"),
    "partition delete": (_TOPIC, "NAME no"),
    "pipeline archive": (f"--to parquet:HOME/archive NAME/NAME {_SPARK} --dry-run",),
    "pipeline audit": (f"NAME/NAME {_SPARK} --dry-run", f"NAME/no {_SPARK} --dry-run"),
    "pipeline aggregate": (f"NAME/NAME {_SPARK} --dry-run",),
    "pipeline export": (f"NAME/NAME --sql x --to HOME/out {_SPARK} --dry-run",),
    "pipeline lag": (f"NAME/NAME --group NAME {_SPARK}", f"NAME/no --group NAME {_SPARK}"),
    "pipeline copy": (f"NAME/NAME --to NAME/copy {_SPARK} --dry-run",),
    "pipeline compact": (f"NAME/NAME --key header:NAME --to NAME/copy {_SPARK} --dry-run",),
    "pipeline dedup": (f"NAME/NAME --to NAME/copy {_SPARK} --dry-run",),
    "retention enable": ("--dry-run", ""),
    "segment list": (f"{_TOPIC} 0", f"{_TOPIC} 9"),
    "segment delete": (f"{_TOPIC} 0", "NAME no 0"),
    "stream list": ("",),
    "stream get": ("id:0", "NAME", "no"),
    "stream create": ("NAME", "MADE", "MADE -o json", "MADE"),
    "stream update": ("MADE MADE", "no MADE", "id:0 NAME"),
    "stream delete": ("id:0", "MADE --yes", "MADE"),
    "stream purge": ("id:0", "id:0 --yes"),
    "token list": ("",),
    "token create": ("MADE", "NAME"),
    "token delete": ("NAME", "MADE --yes", "MADE"),
    "topic get": (_TOPIC, f"{_TOPIC} --json", "NAME no", "no no"),
    "topic set": (f"{_TOPIC} x=1", f"{_TOPIC} segment_size=1", "NAME no segment_size=2MiB"),
    "topic list": ("id:0",),
    "topic create": ("id:0 MADE", "id:0 NAME", "id:0 MADE --expiry x"),
    "topic update": (f"{_TOPIC} --name NAME", f"{_TOPIC} --expiry 7d", f"{_TOPIC} --expiry 7d -o json"),
    "topic delete": (_TOPIC, "id:0 MADE --yes", "id:0 MADE"),
    "topic purge": (_TOPIC, f"{_TOPIC} --yes"),
    "topic settings show": (_TOPIC, f"{_TOPIC} -o json", "NAME no"),
    "topic settings set": (f"{_TOPIC} segment_size=2MiB", f"{_TOPIC} x=1", "NAME no x=1"),
    "upgrade check": ("DATA",),
    "user list": ("",),
    "user get": ("id:1", "NAME", "no"),
    "user create": ("MADE --password-stdin", "NAME --password-stdin"),
    "user update": ("id:1 --name NAME", "id:1 --grant poll_messages", "id:1 --set NAME", "no --name x"),
    "user password": ("id:1 --password-stdin", "no --password-stdin"),
    "user delete": ("id:1", "MADE --yes", "MADE"),
}  # fmt: skip


def fill(server: Server) -> None:
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
        client.create_stream(NAME)
        client.create_topic(NAME, NAME)
        client.create_group(NAME, NAME, NAME)
        client.create_user(NAME, "secret")
        client.create_token(NAME)
    with wire.connect(server.address) as root:
        root.send(0, 0, wire.to_partition(0), [wire.message(b"x")])
        place = wire.identifier(0) * 3
        root.request(Code.JOIN_CONSUMER_GROUP, place)
        root.store_offset(0, 0, 0, 0, wire.group(0))
        root.request(Code.LEAVE_CONSUMER_GROUP, place)


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.fixture(scope="module")
def shell(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    home = tmp_path_factory.mktemp("home")
    write_stream(home / "liftbridge", NAME, {0: [Entry(0, b"x", subject=NAME)]})
    return Shell(server.address, home)


def said_by(shell: Shell, data: Path, line: str) -> str:
    words = {"DATA": shlex.quote(str(data)), "NAME": shlex.quote(NAME), "MADE": shlex.quote(MADE)}
    for word, quoted in words.items():
        line = line.replace(word, quoted)
    return shell.run(f"shardd {line}", "a-password\n")


LINES = (
    "stream list", "stream get id:0", "stream delete id:0", "stream purge id:0", "topic list id:0",
    "topic get id:0 id:0", "topic delete id:0 id:0", "topic purge id:0 id:0", "partition delete id:0 id:0",
    "group list id:0 id:0", "group get id:0 id:0 id:0", "group delete id:0 id:0 id:0", "user list", "user get id:1",
    "user delete id:1", "token list", "offset list id:0 id:0",
)  # fmt: skip


# First: later lines change what these show.
@pytest.mark.parametrize("line", LINES)
def test_hostile_name_is_recognizable_where_it_is_shown(shell: Shell, line: str) -> None:
    assert SHOWN in shell.run(f"shardd {line}")


@pytest.mark.parametrize("command", CASES)
def test_hostile_name_is_shown_escaped(shell: Shell, server: Server, command: str) -> None:
    for line in CASES[command]:
        said = said_by(shell, server.data_dir, f"{command} {line}".rstrip())
        assert all(each.isprintable() for each in said.split("\n")), (line, said)


@pytest.mark.parametrize("program", ["bash", "zsh"])
def test_names_that_a_shell_would_carry_out_are_not_completed(server: Server, tmp_path: Path, program: str) -> None:
    """Scripts of completion evaluate what they are given."""
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
        for name in ACTIVE:
            client.create_stream(name)
    words = "shardd stream get "
    asked = {"_SHARDD_COMPLETE": f"complete_{program}", "COMP_WORDS": words, "COMP_CWORD": "3"}
    asked |= {
        "_TYPER_COMPLETE_ARGS": words,
        "SHARDD_URL": f"shardd://iggy:iggy@{server.address}",
        "HOME": str(tmp_path),
    }
    said, ends_s = "", time.monotonic() + WAIT_S
    try:
        while HARMLESS not in said and time.monotonic() < ends_s:  # a busy server is not waited for
            done = subprocess.run(SHARDD, env={**os.environ, **asked}, capture_output=True, timeout=WAIT_S)
            said = done.stdout.decode()
    finally:
        with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
            for name in ACTIVE:
                client.delete_stream(name)
    assert HARMLESS in said
    assert "touched" not in said and "2J" not in said and "2J" not in done.stderr.decode()


def test_every_command_is_tried_with_hostile_names_or_has_a_reason() -> None:
    tree = {" ".join(words) for words in commands(LEFT_OUT)}
    assert tree == {*CASES} | {*REASONS} and not {*CASES} & {*REASONS}


@pytest.mark.parametrize("line", ["stream list -o json", "topic list id:0 -o jsonl", "user get id:1 -o json"])
def test_hostile_name_stays_itself_for_programs_and_harmless_for_terminals(shell: Shell, line: str) -> None:
    said = shell.run(f"shardd {line}").replace("MICROSECONDS", "0")
    assert said.endswith("\n") and said[:-1].isprintable()
    found = json.loads(said)
    assert NAME in ([each["name"] for each in found] if isinstance(found, list) else [found["name"]])
