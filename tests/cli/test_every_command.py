"""Every command of the tree, interrupted anywhere and with an output that takes nothing: one sentence and a documented
status, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest

from shardd.client import SyncClient
from tests.cli.forked import Forks
from tests.support.command_tree import commands
from tests.support.generated import examples
from tests.support.server import ONE_SHARD, Server

STATUSES: Final = frozenset({0, 1, 2, 3, 4, 5, 6, 130, 141})
INTERRUPTED: Final = 130
FIRST: Final = 20  # before it the interpreter alone could say something
FULL: Final = "shardd: the output cannot be written: No space left on device\n"
# servers, workloads and queries: their ends are tested where they are
LEFT_OUT: Final = frozenset({"serve", "bench", "spark", "pipeline"})
# by command, or by name: words that let most commands succeed
LINES: Final = {
    "top": ["--once", "--interval", "0.1"],
    "completion": ["bash"],
    "message tail": ["s", "t", "--no-follow"],
    "context create": ["new", "--url", "shardd://localhost"],
    "topic settings set": ["s", "t", "segment_size=2 MiB"],
    "topic update": ["s", "t", "--expiry", "7d"],
    "user update": ["other", "--grant", "poll_messages"],
    "group seek": ["g", "s", "t", "--to-latest"],
    "stream update": ["s", "s"],
}
WORDS: Final = {
    "stream": "s",
    "topic": "t",
    "group": "g",
    "user": "other",
    "username": "other",
    "partition": "0",
    "offset": "0",
    "client": "1",
}


def line(words: tuple[str, ...], parameters: list[Any]) -> list[str]:
    if " ".join(words) in LINES:
        return [*words, *LINES[" ".join(words)]]
    said = [*words]
    for each in parameters:
        if not each.required:
            continue
        value = WORDS.get(each.name, "1" if each.bare_type in (int, float) else f"new-{each.name}")
        said += [value] if each.param_type_name == "argument" else [each.opts[0], value]
    return said


COMMANDS: Final = {" ".join(words): line(words, parameters) for words, parameters in commands(LEFT_OUT).items()}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    home = tmp_path_factory.mktemp("home")
    with Server(tmp_path_factory.mktemp("every") / "data", ONE_SHARD) as server:
        url = f"shardd://iggy:iggy@{server.address}"
        with SyncClient(url) as client:
            client.create_stream("s")
            client.create_topic("s", "t")
            client.create_user("other", "secret")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
        own = {"SHARDD_URL": url, "SHARDD_TCP_ADDRESS": server.address, "HOME": str(home)}
        with Forks(kept | own | {"SHARDD_SYSTEM_PATH": str(home / "data")}, home) as made:
            yield made


@pytest.fixture(scope="module")
def calls() -> dict[str, int]:
    """How many functions each command calls, where it has run."""
    return {}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_into_a_full_device_ends_with_one_sentence(forks: Forks, calls: dict[str, int], name: str) -> None:
    ended = forks.run(COMMANDS[name], "/dev/full", interrupt=0)
    calls[name] = ended.calls
    assert ended.status in STATUSES, ended
    assert "Traceback" not in ended.stderr, ended.stderr
    assert sum(each.startswith("shardd: ") for each in ended.stderr.splitlines()) <= 1, ended.stderr


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_command_that_is_interrupted_anywhere_says_so(forks: Forks, calls: dict[str, int], number: int) -> None:
    """At calls of functions: each command at others of its own."""
    name = list(COMMANDS)[number]
    if name not in calls:
        calls[name] = forks.run(COMMANDS[name], interrupt=0).calls
    for turn in range(examples(1)):
        at = FIRST + int((calls[name] - FIRST) * ((number + turn * 0.61803) * 0.75487 % 1))
        ended = forks.run(COMMANDS[name], interrupt=at)
        assert "Traceback" not in ended.stderr and "Warning" not in ended.stderr, (at, ended)
        assert "destroyed" not in ended.stderr, (at, ended)
        assert ended.status in STATUSES, (at, ended)
        assert ended.status != INTERRUPTED or ended.stderr.count("interrupted") == 1, (at, ended)


@pytest.mark.parametrize("part", [0.01, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_completion_that_is_interrupted_says_nothing(forks: Forks, part: float) -> None:
    asked = {"_SHARDD_COMPLETE": "complete_bash", "COMP_WORDS": "shardd stream get s", "COMP_CWORD": "3"}
    calls = forks.run([], interrupt=0, environment=asked).calls
    ended = forks.run([], interrupt=int(calls * part), environment=asked)
    assert ended.stderr == "" and ended.status in STATUSES, ended


HOSTILE_WORDS: Final = {
    "no UTF-8": "shardd stream get \udcff",
    "open quote": "shardd stream get 's",
    "escape": "shardd stream get \x1b[2J",
    "no such stream": "shardd topic get nothing ",
    "large id": "shardd topic get id:99999999999 ",
    "no such command": "shardd nothing at all ",
    "bad address": "shardd stream get --url shardd://:x@[::1 s",
    "bad number": "shardd consume s t -n x ",
    "nothing": "",
}


@pytest.mark.parametrize("words", HOSTILE_WORDS.values(), ids=HOSTILE_WORDS)
@pytest.mark.parametrize("count", ["1", "3", "99"])
def test_completion_of_hostile_words_says_nothing(forks: Forks, words: str, count: str) -> None:
    asked = {"_SHARDD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    ended = forks.run([], environment=asked)
    assert ended.stderr == "" and ended.status in STATUSES, ended


@pytest.mark.parametrize(
    "count", ["x", "", "-5", "1.5", "\udcff", "\u0663", "9" * 5_000], ids=lambda each: ascii(each[:9])
)
def test_completion_at_a_word_that_is_not_a_number_says_nothing(forks: Forks, count: str) -> None:
    asked = {"_SHARDD_COMPLETE": "complete_bash", "COMP_WORDS": "shardd stream get s", "COMP_CWORD": count}
    ended = forks.run([], environment=asked)
    assert ended.stderr == "" and ended.status in STATUSES, ended


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_without_the_line_of_the_shell_says_nothing(forks: Forks, shell: str) -> None:
    ended = forks.run([], environment={"_SHARDD_COMPLETE": f"complete_{shell}"})
    assert ended.stderr == "" and ended.status in STATUSES, ended
