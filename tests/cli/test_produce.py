"""What `shardd produce` and `message import` refuse, and what they say of messages that were stored before."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.client import SyncClient
from tests.cli.test_processes import SHARDD, TIMEOUT_S
from tests.cli.transcript import Shell
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Iterator[Shell]:
    """A topic `s t` of one partition, without messages."""
    with client_of(server.address) as client:
        for stream in client.streams():
            client.delete_stream(stream.id)
        client.create_stream("s")
        client.create_topic("s", "t", 1)
        client.create_topic("s", "none", 0)
    yield Shell(server.address, tmp_path)


def client_of(address: str) -> SyncClient:
    return SyncClient(f"shardd://iggy:iggy@{address}")


def payloads(shell: Shell) -> list[bytes]:
    with client_of(shell.address) as client:
        return [each.payload for each in client.poll("test", "s", "t", 0, strategy=1, value=0, count=1000).messages]


BAD_LINES = {
    "mixed alphabets": '{"payload_base64":"-_+/"}',
    "no alphabet": '{"payload_base64":"%%%%YWJj"}',
    "no padding": '{"payload_base64":"YQ"}',
    "line breaks": '{"payload_base64":"YWJj\\nYWJj"}',
    "base64 of a number": '{"payload_base64":7}',
    "header in bad base64": '{"payload":"x","headers":{"k":{"base64":"%%%%YWJj"}}}',
    "header with two forms": '{"payload":"x","headers":{"k":{"base64":"YQ==","text":"a"}}}',
    "header null": '{"payload":"x","headers":{"k":null}}',
    "header list": '{"payload":"x","headers":{"k":[1]}}',
    "headers in a list": '{"payload":"x","headers":[]}',
    "header too long": json.dumps({"payload": "x", "headers": {"k": "v" * 256}}),
    "header too large": '{"payload":"x","headers":{"k":99999999999999999999}}',
    "headers of another name": '{"payload":"x","user_headers":{"k":"v"}}',
    "two payloads": '{"payload":"x","payload_base64":"YQ=="}',
    "no payload": '{"partition":0}',
    "payload of a number": '{"payload":1}',
    "lone surrogate": '{"payload":"\\ud800"}',
    "partition of text": '{"payload":"x","partition":"0"}',
    "partition true": '{"payload":"x","partition":true}',
    "partition below 0": '{"payload":"x","partition":-1}',
    "partition 2^32": '{"payload":"x","partition":4294967296}',
    "a list": "[]",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_json_line_is_told_with_what_was_stored_before(shell: Shell, name: str) -> None:
    typed = '{"payload":"one"}\n{"payload":"two"}\n' + BAD_LINES[name] + "\n"
    for words in ("message import s t --dry-run", "produce s t --json --dry-run"):
        said = shell.run(f"shardd {words}", typed)
        assert said.startswith("shardd: line 3") and said.count("\n") == 2 and said[-4:] in ("[2]\n", "[3]\n")
    assert payloads(shell) == []
    said = shell.run("shardd produce s t --json", typed)
    assert said.startswith("shardd: line 3") and "; 2 messages before are stored\n" in said
    assert payloads(shell) == [b"one", b"two"]


def test_both_alphabets_of_base64_are_read(shell: Shell) -> None:
    typed = '{"payload_base64":"-_-_"}\n{"payload_base64":"+/+/"}\n{"payload":"x","headers":{"k":{"base64":"-_8="}}}\n'
    assert shell.run("shardd produce s t --json", typed) == "3 messages are stored\n"
    assert payloads(shell) == [b"\xfb\xff\xbf", b"\xfb\xff\xbf", b"x"]
    assert '{"base64": "+/8="}' in shell.run("shardd consume s t -f '%h\\n'")


def test_line_without_a_key_is_told_with_what_was_stored_before(shell: Shell) -> None:
    said = shell.run("shardd produce s t -K :", "a:1\nb:2\nnone\n")
    assert said == "shardd: line 3 has no key: ':' is not in it; 2 messages before are stored\n[2]\n"


def test_import_into_fewer_partitions_is_seen_before_and_told(shell: Shell) -> None:
    lines = "".join(json.dumps({"partition": number % 2, "payload": str(number)}) + "\n" for number in range(100))
    missing = "shardd: line 2: there is no partition 1; the topic has 1"
    assert shell.run("shardd message import s t --dry-run", lines) == f"{missing}\n[3]\n"
    assert shell.run("shardd message import s t", lines) == f"{missing}; 1 messages before are stored\n[3]\n"


@pytest.mark.parametrize(
    "words",
    ["-H k=1 -H k=2", "--rate 1e-300", "--rate 1e300", "--rate inf", "--rate nan", "-K '\\q'", "-K '\\'"],
)
def test_options_that_make_no_sense_are_one_sentence(shell: Shell, words: str) -> None:
    said = shell.run(f"shardd produce s t {words}", "k:x\n")
    assert said.endswith("[2]\n") and "Traceback" not in said
    assert payloads(shell) == []


def test_delimiter_beyond_ascii_stays_as_it_is(shell: Shell) -> None:
    assert shell.run("shardd produce s t -K 'é\\t\\x41'", "k\u00e9\tAx\n") == "1 messages are stored\n"
    assert shell.run("shardd consume s t -f '%k %v\\n'") == "k x\n"


def test_produce_into_a_topic_without_partitions_says_so(shell: Shell) -> None:
    said = shell.run("shardd produce s none", "x\n")
    assert said == "shardd: topic s/none has no partition; `shardd partition create` adds one\n[1]\n"


def test_messages_above_the_size_of_a_batch_are_stored(shell: Shell, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (17 << 20))
    assert shell.run(f"shardd produce s t --whole {large}") == "1 messages are stored\n"
    assert shell.run(f"shardd produce s t {large}") == "1 messages are stored\n"
    assert shell.run("shardd consume s t -f '%S\\n'") == f"{17 << 20}\n" * 2


class Counted(bytes):
    """A block that counts which bytes are copied again when it is put behind others."""

    copied = 0

    def __radd__(self, other: bytes) -> bytes:
        Counted.copied += len(other) + len(self)
        return bytes(other) + bytes(self)


def test_long_line_is_not_copied_with_every_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from shardd.cli import inputs

    (tmp_path / "empty").touch()
    blocks = [Counted(b"x" * 1000) for _ in range(1000)] + [Counted(b"end\nnext")]

    async def read(_file: object) -> bytes:
        return blocks.pop(0) if blocks else b""

    monkeypatch.setattr(inputs, "_read", read)

    async def lines() -> list[bytes]:
        return [line async for some in inputs.lines_in_turn([tmp_path / "empty"], 1 << 30) for line in some]

    assert asyncio.run(lines()) == [b"x" * 1_000_000 + b"end", b"next"]
    assert Counted.copied == 0


def test_line_beyond_the_largest_message_is_refused_before_it_is_whole(shell: Shell) -> None:
    environment = os.environ | {"SHARDD_URL": f"shardd://iggy:iggy@{shell.address}"}
    words = [*SHARDD, "produce", "s", "t"]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sending:
        assert sending.stdin is not None and sending.stderr is not None
        with pytest.raises(BrokenPipeError):
            while True:
                sending.stdin.write(b"x" * (1 << 20))
        said = sending.stderr.read()
        assert (sending.wait(TIMEOUT_S), said) == (2, b"shardd: line 1 has more than 64000256 bytes\n")


def test_interrupted_producer_counts_what_is_stored(shell: Shell) -> None:
    environment = os.environ | {"SHARDD_URL": f"shardd://iggy:iggy@{shell.address}"}
    words = [*SHARDD, "produce", "s", "t"]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sending:
        assert sending.stdin is not None and sending.stderr is not None
        ended = threading.Timer(TIMEOUT_S, sending.kill)
        ended.start()
        for line in (b"first\n", b"second\n"):
            sending.stdin.write(line)
            sending.stdin.flush()
            deadline = time.monotonic() + TIMEOUT_S
            while line.strip() not in payloads(shell):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        sending.send_signal(signal.SIGINT)
        assert sending.wait(TIMEOUT_S) == 130
        ended.cancel()
        said = sending.stderr.read().decode()
    assert said in (  # the answer of the second one may be on its way
        "shardd: interrupted: 2 messages are stored\n",
        "shardd: interrupted: 1 messages are stored; of 1 more it is not known\n",
    )
