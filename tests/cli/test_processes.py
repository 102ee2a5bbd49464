"""The command line as processes: pipes, interrupts, what it costs, archives, completion."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Final

import pytest

from shardd.client import SyncClient
from tests.demo import prepare_flights
from tests.support import clients
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

TIMEOUT_S = 120.0
SHARDD = [sys.executable, "-P", "-m", "shardd"]


def fill(server: Server) -> None:
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
        client.create_stream("flights")
        for topic in ("in", "out", "tail", "group", "cut"):
            client.create_topic("flights", topic)


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    return kept | {"SHARDD_URL": f"shardd://iggy:iggy@{server.address}", "HOME": str(tmp_path)}


def run(environment: dict[str, str], *words: str, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*SHARDD, *words], input=typed, env=environment, capture_output=True, timeout=TIMEOUT_S)


def test_what_is_consumed_and_produced_again_is_equal_byte_for_byte(environment: dict[str, str]) -> None:
    lines = b"".join(b"%d,EWR,\xff%s\n" % (number, b"x" * (number % 97)) for number in range(20_000))
    assert run(environment, "produce", "flights", "in", typed=lines).returncode == 0
    with subprocess.Popen([*SHARDD, "consume", "flights", "in"], env=environment, stdout=subprocess.PIPE) as reading:
        copied = subprocess.run(
            [*SHARDD, "produce", "flights", "out"], stdin=reading.stdout, env=environment, timeout=TIMEOUT_S
        )
    assert (reading.returncode, copied.returncode) == (0, 0)
    again = run(environment, "consume", "flights", "out").stdout
    assert hashlib.sha256(again).hexdigest() == hashlib.sha256(lines).hexdigest()


@pytest.mark.slow
def test_all_flights_of_a_year_are_equal_byte_for_byte(environment: dict[str, str], tmp_path: Path) -> None:
    flights = tmp_path / "flights.jsonl"
    script = Path(prepare_flights.__file__)
    assert clients.run("0.8.0", script, [str(flights)], timeout_s=300) == [336_776]
    with SyncClient(environment["SHARDD_URL"]) as client:
        client.create_topic("flights", "year")
        client.create_topic("flights", "copy")
    assert run(environment, "produce", "flights", "year", str(flights)).stderr == b"336776 messages are stored\n"
    with subprocess.Popen([*SHARDD, "consume", "flights", "year"], env=environment, stdout=subprocess.PIPE) as reading:
        copied = subprocess.run(
            [*SHARDD, "produce", "flights", "copy"], stdin=reading.stdout, env=environment, timeout=TIMEOUT_S
        )
    assert (reading.returncode, copied.returncode) == (0, 0)
    assert run(environment, "consume", "flights", "copy").stdout == flights.read_bytes()


def test_a_reader_that_goes_ends_it_quietly(environment: dict[str, str]) -> None:
    assert run(environment, "produce", "flights", "cut", typed=b"some line of a file\n" * 20_000).returncode == 0
    with subprocess.Popen(
        [*SHARDD, "consume", "flights", "cut"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        assert reading.stdout.readline() == b"some line of a file\n"
        reading.stdout.close()
        assert reading.wait(TIMEOUT_S) == 141
        assert reading.stderr.read() == b""


def test_an_interrupted_member_says_what_is_committed(environment: dict[str, str]) -> None:
    assert run(environment, "produce", "flights", "group", typed=b"one\ntwo\n").returncode == 0
    words = ["consume", "flights", "group", "--group", "g", "--follow"]
    with subprocess.Popen(
        [*SHARDD, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        assert [reading.stdout.readline(), reading.stdout.readline()] == [b"one\n", b"two\n"]
        _until_stored(environment["SHARDD_URL"], 1)
        reading.send_signal(signal.SIGINT)
        assert reading.wait(TIMEOUT_S) == 130
        said = reading.stderr.read().decode()
    assert said.startswith("shardd: interrupted: 2 messages were written, ") and said.count("\n") == 1
    assert "Traceback" not in said


def _until_stored(url: str, offset: int) -> None:
    with SyncClient(url) as client:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = client.stored_offset("g", "flights", "group", 0, group=True)
            if found is not None and found.stored == offset:
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_interrupted_producer_says_what_is_stored(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [*SHARDD, "produce", "flights", "tail"], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as sending:
        assert sending.stdin is not None and sending.stderr is not None
        sending.stdin.write(b"first\n")
        sending.stdin.flush()
        with SyncClient(environment["SHARDD_URL"]) as client:
            deadline = time.monotonic() + TIMEOUT_S
            while not client.poll("test", "flights", "tail", 0, strategy=1).messages:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        sending.send_signal(signal.SIGINT)
        assert sending.wait(TIMEOUT_S) == 130
        said = sending.stderr.read().decode()
    assert said.startswith("shardd: interrupted: ") and said.count("\n") == 1


def test_a_bundle_has_no_secret(environment: dict[str, str], tmp_path: Path) -> None:
    contexts = tmp_path / ".config/shardd/contexts.toml"
    contexts.parent.mkdir(parents=True)
    contexts.write_text('[contexts.a]\nurl = "shardd://name:hunter2@x"\npassword = "hunter2"\ntoken = "hunter2"\n')
    done = run(environment, "debug", "bundle", str(tmp_path / "bundle.zip"))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    assert {"stats.json", "metrics.json", "facts.json", "contexts.json", "snapshot.zip"} <= content.keys()
    assert all(b"hunter2" not in data and b"iggy:iggy" not in data for data in content.values())
    assert json.loads(content["contexts.json"])["a"]["token"] == "***"


def test_names_of_the_server_are_completed(environment: dict[str, str]) -> None:
    script = run(environment, "completion", "bash").stdout.decode()
    assert "_SHARDD_COMPLETE" in script
    for words, expected in (("shardd stream get fl", ["flights"]), ("shardd topic purge flights o", ["out"])):
        asked = {"_SHARDD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        deadline = time.monotonic() + TIMEOUT_S
        while (found := run(environment | asked).stdout.decode().split()) != expected:
            assert not found and time.monotonic() < deadline  # who types does not wait long for a busy server
    closed = {"_SHARDD_COMPLETE": "complete_bash", "COMP_WORDS": "shardd stream get f", "COMP_CWORD": "3"}
    done = run(environment | closed | {"SHARDD_URL": "shardd://iggy:iggy@127.0.0.1:1"})
    assert done.stdout.strip() == b"" and b"Traceback" not in done.stderr
