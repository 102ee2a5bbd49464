"""The released clients of Liftbridge, unchanged, each in its own environment and process, against one server that
`shardd-liftbridge` has started as gufo-liftbridge's own tests start a Liftbridge server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.liftbridge_launcher import LiftbridgeLauncher
from tests.support.venvs import liftbridge_python

HERE = Path(__file__).parent
RUN_TIMEOUT_S = 120
# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeLauncher]:
    launched = LiftbridgeLauncher(tmp_path_factory.mktemp("liftbridge") / "data")
    launched.start()
    try:
        yield launched
    finally:
        launched.stop()


def run(client: str, server: LiftbridgeLauncher, **variables: str) -> Any:
    script = HERE / f"client_{client.partition('-')[0]}_liftbridge.py"
    command = [str(liftbridge_python(client)), str(script), server.liftbridge]
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def gufo(server: LiftbridgeLauncher) -> Any:
    return run("gufo-liftbridge", server)


@pytest.fixture(scope="module")
def python_liftbridge(server: LiftbridgeLauncher, gufo: Any) -> Any:
    """Behind the other one, which wants to see a server without streams."""
    return run("python-liftbridge", server, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")


def numbered(first: int, end: int) -> list[list[Any]]:
    return [[number, f"msg{number}", "k"] for number in range(first, end)]


def test_gufo_finds_one_broker_and_no_streams_but_the_cursors(server: LiftbridgeLauncher, gufo: Any) -> None:
    seen = gufo["metadata"]
    assert seen["streams"] == ["__cursors"] and seen["broker"] == server.liftbridge
    assert seen["left"] == ["__cursors"]


def test_gufo_creates_describes_and_deletes_streams(gufo: Any) -> None:
    seen = gufo["metadata"]
    assert seen["stream"] == ["meta", "meta.in", [0, 1, 2]] and seen["leaders"] == [True] * 3
    assert seen["empty"] == [[number, -1, -1, False] for number in range(3)]
    assert (seen["again"], seen["unknown"]) == ("ErrorAlreadyExists", "ErrorNotFound")


def test_gufo_publishes_with_every_policy_and_reads_from_every_position(gufo: Any) -> None:
    seen = gufo["publish_and_subscribe"]
    assert seen["messages"] == seen["since"] == numbered(0, 10)
    assert seen["from_5"] == numbered(5, 10) and seen["latest"] == numbered(9, 10)
    assert seen["headers"] == [str(number) for number in range(10)]
    assert seen["own"] == [["Number", "reply", "subject"]]
    assert (seen["subject"], seen["partition"], seen["end"]) == ("pub", 0, [9, 9]) and seen["now"]


def test_gufo_is_refused_with_the_errors_it_knows(gufo: Any) -> None:
    seen = gufo["publish_and_subscribe"]
    assert (seen["nowhere"], seen["too_large"]) == ("ErrorNotFound", "LiftbridgeError")
    assert gufo["settings"] == {"subject": "a.b", "factor": "LiftbridgeError", "compact": "LiftbridgeError"}


def test_gufo_hears_what_is_published_while_it_listens(gufo: Any) -> None:
    assert gufo["live"] == {"before": False, "last": "last", "dense": True, "partition": [1]}


def test_gufo_publishes_in_bulk_and_compressed(gufo: Any) -> None:
    assert gufo["bulk"] == {
        "acks": 100, "ids": ["one"], "errors": 0, "offsets": [True], "values": [50, 50], "keys": [[0, 2, 4], [1, 3, 5]],
    }  # fmt: skip


def test_gufo_resumes_at_its_cursors(gufo: Any) -> None:
    assert gufo["resume"] == {"offsets": [5, 6, 7, 8, 9], "fresh": list(range(10))}
    assert gufo["cursors"]["seen"] == [-1, *range(1, 11)]


def test_python_liftbridge_creates_publishes_and_reads(server: LiftbridgeLauncher, python_liftbridge: Any) -> None:
    seen = python_liftbridge
    empty = [0, "", ""]  # what begins a subscription, as this client shows it
    values = [*([f"v{number}", "k"] for number in range(5)), ["leader", ""], ["all", ""], ["subject", ""]]
    stored = [[offset, *each] for offset, each in enumerate(values)]
    assert seen["earliest"] == [empty, *stored]
    assert seen["offset"] == [empty, *stored[6:]] and seen["latest"] == [empty, stored[7]]
    assert seen["hour"] == 9
    assert "py-stream" in seen["streams"] and seen["brokers"] == [server.liftbridge]


def test_python_liftbridge_is_refused_with_the_errors_it_knows(python_liftbridge: Any) -> None:
    seen = python_liftbridge
    assert (seen["again"], seen["nowhere"], seen["publish_nowhere"]) == (
        "ErrStreamExists", "ErrNoSuchStream", "ErrNoSuchStream",
    )  # fmt: skip
    assert seen["wrong_subject"] == "IndexError"  # what this client makes of every other status


def test_what_they_published_is_read_by_native_clients(server: LiftbridgeLauncher, gufo: Any) -> None:
    command = [sys.executable, "-m", "shardd", "consume", "liftbridge-default", "pub", "-o", "earliest", "--json"]
    environment = {**os.environ, "SHARDD_URL": f"shardd://iggy:iggy@{server.address}"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [[each["offset"], each["payload"]] for each in found] == [[n, f"msg{n}"] for n in range(10)]
    assert gufo["publish_and_subscribe"]["messages"] == numbered(0, 10)
