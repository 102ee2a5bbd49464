"""Everything that is written to the standard output is written whole, or the command says that it was not."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.client import SyncClient
from tests.cli.test_processes import SHARDD, TIMEOUT_S
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.wide import crossed

LINES = [
    "consume s t",
    "consume s t -f %o",
    "message export s t",
    "stream list",
    "stream list -o jsonl",
    "topic get s t",
    "stats -o json",
    "completion bash",
    "config show",
    "--version",
    "--help",
    "stream --help",
]

MESSAGES = 3_000
PAYLOAD = b"x" * 1_000


def fill(server: Server) -> None:
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
        client.create_stream("s")
        client.create_topic("s", "t")
    lines = b"\n".join([PAYLOAD] * MESSAGES)
    url = f"shardd://iggy:iggy@{server.address}"
    subprocess.run([*SHARDD, "produce", "s", "t", "--url", url], input=lines, check=True, timeout=TIMEOUT_S)


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    more = {"SHARDD_URL": f"shardd://iggy:iggy@{server.address}", "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    return kept | more


def begun(environment: dict[str, str], *words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*SHARDD, *words], env=environment, stderr=subprocess.PIPE, **options)


def nonblocking_pipe() -> tuple[int, int]:
    """A pipe whose writing end takes a part of a large write, and then nothing."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    return reading, writing


def test_unbuffered_export_into_a_short_pipe_is_whole(environment: dict[str, str]) -> None:
    reading, writing = nonblocking_pipe()
    with begun(environment, "message", "export", "s", "t", stdout=writing) as exporting:
        os.close(writing)
        with os.fdopen(reading, "rb") as copy:
            lines = copy.read().splitlines()
        assert exporting.stderr is not None
        assert (exporting.wait(TIMEOUT_S), exporting.stderr.read()) == (0, b"")
    assert len(lines) == MESSAGES
    assert lines[-1].startswith(b'{"partition":0,"offset":%d,' % (MESSAGES - 1))
    assert lines[-1].endswith(b'"payload":"%s"}' % PAYLOAD)


def test_group_consumer_whose_reader_goes_commits_nothing_unwritten(environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    with begun(environment, "consume", "s", "t", "-g", "head", stdout=writing) as consuming:
        os.close(writing)
        select.select([reading], [], [], TIMEOUT_S)
        os.read(reading, 10)
        os.close(reading)
        assert consuming.wait(TIMEOUT_S) == 141
        assert consuming.stderr is not None and consuming.stderr.read() == b""
    with SyncClient(environment["SHARDD_URL"]) as client:
        assert client.stored_offset("head", "s", "t", 0, group=True) is None


@pytest.mark.parametrize(("line", "unbuffered"), crossed(LINES, ["1", ""]))
def test_full_device_is_one_sentence(environment: dict[str, str], line: str, unbuffered: str) -> None:
    environment["PYTHONUNBUFFERED"] = unbuffered
    with Path("/dev/full").open("wb") as full, begun(environment, *line.split(), stdout=full) as ending:
        assert ending.wait(TIMEOUT_S) == 1
        assert ending.stderr is not None
        assert ending.stderr.read() == b"shardd: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("line", ["consume s t", "topic get s t --json", "stream list", "config show", "--help"])
def test_closed_pipe_ends_quietly_with_141(environment: dict[str, str], line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with begun(environment, *line.split(), stdout=writing) as ending:
        os.close(writing)
        assert ending.wait(TIMEOUT_S) == 141
        assert ending.stderr is not None and ending.stderr.read() == b""


def closed(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


def test_closed_standard_output_is_one_sentence(environment: dict[str, str]) -> None:
    with begun(environment, "consume", "s", "t", "-g", "closed", preexec_fn=closed(1)) as ending:
        assert ending.wait(TIMEOUT_S) == 1
        assert ending.stderr is not None
        assert ending.stderr.read() == b"shardd: the output cannot be written: Bad file descriptor\n"
    with SyncClient(environment["SHARDD_URL"]) as client:
        assert client.stored_offset("closed", "s", "t", 0, group=True) is None


def test_faults_without_a_place_for_sentences_keep_their_status(environment: dict[str, str]) -> None:
    words = [*SHARDD, "stream", "get", "nothing"]
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(words, env=environment, stderr=full, timeout=TIMEOUT_S).returncode == 3
    without = subprocess.run(words, env=environment, preexec_fn=closed(0, 2), stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    assert (without.returncode, without.stdout) == (3, b"")
