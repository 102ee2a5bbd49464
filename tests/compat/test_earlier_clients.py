"""Earlier client generations on one port (docs/protocol/legacy.md): the released clients, each in an environment of its
own, on one server and one directory. Each writes, and all that come later read it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import clients
from tests.support.server import Server
from tests.support.venvs import CLIENT_VERSIONS, earlier_python

HERE = Path(__file__).parent
ON_ANY_PORT = (
    "iggy-py 0.2.5",
    "iggy-py 0.2.6",
    "iggy-py 0.2.7",
    "iggy-py 0.4.0",
    "apache-iggy 0.5.0",
    "apache-iggy 0.6.0",
)
ON_THE_DEFAULT_PORT = (
    "iggy-py 0.1.0",
    "iggy-py 0.2.0",
    "iggy-py 0.2.1",
    "iggy-py 0.2.2",
    "iggy-py 0.2.3",
    "iggy-py 0.2.4",
)
# They write "0|" before every text, and of a longer one its begin and its end alone.
THAT_CUT_TEXTS = ("iggy-py 0.2.0", "iggy-py 0.2.1")
WRITTEN = [[0, "one"], [1, "two" * 300], [2, "three"]]
# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(600)


def first_partition(client: str) -> int:
    return 0 if client == "apache-iggy 0.6.0" else 1


def stream_of(client: str) -> str:
    return client.replace(" ", "-")


def as_sent(client: str, text: str) -> str:
    """What leaves a client for this text."""
    if client not in THAT_CUT_TEXTS:
        return text
    return f"0|{text[:20]}...{text[-20:]}" if len(text) > 40 else f"0|{text}"


def check(client: str, seen: dict[str, Any]) -> None:
    written = [[offset, as_sent(client, str(text))] for offset, text in WRITTEN]
    assert seen["login"] is None and seen["wrong"] is not None
    created, again, topic = seen["create"]
    assert (created, topic) == (None, None) and again is not None
    assert "Panic" not in f"{again} {seen['wrong']} {seen['nowhere']}"
    assert "1012" in again or "StreamNameAlreadyExists" in again
    assert seen["send"] is None and ("3007" in seen["nowhere"] or "PartitionNotFound" in seen["nowhere"])
    assert seen["polls"] == [written[:2], written[2:], []]


def test_every_generation_writes_and_reads_what_others_wrote(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        before: list[str] = []
        for client in ON_ANY_PORT:
            version = client.split()[1]
            arguments = [version, server.address, str(first_partition(client)), stream_of(client), *before]
            command = [str(earlier_python(client)), str(HERE / "client_earlier.py"), *arguments]
            output = subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True).stdout
            seen = json.loads(output)
            check(client, seen)
            assert seen["others"] == dict.fromkeys(before, WRITTEN), client
            before.append(stream_of(client))
        url = clients.connection_string(server.address)
        for stream in before:  # and the classic one
            (read,) = clients.run(CLIENT_VERSIONS[0], HERE / "client_read.py", [url, stream, "t"])
            assert read == [str(text).encode().hex() for _offset, text in WRITTEN], stream


@pytest.mark.parametrize("client", ON_THE_DEFAULT_PORT)
def test_clients_that_know_one_port_alone(client: str, tmp_path: Path) -> None:
    apart = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network of its own can be made here")
    version = client.split()[1]
    try:
        python = str(earlier_python(client))
    except LookupError as problem:
        pytest.skip(str(problem))
    script = str(HERE / "run_on_default_port.py")
    arguments = [str(tmp_path / "data"), python, str(HERE / "client_earlier.py"), version, "1", stream_of(client)]
    run = subprocess.run([*apart, sys.executable, script, *arguments], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    check(client, json.loads(run.stdout))
