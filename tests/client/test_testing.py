"""shardd.testing: servers beside each other, one that does not start, and the fixture in a project of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardd.client import SyncClient
from shardd.testing import server

PROJECT = """
from shardd.client import SyncClient
pytest_plugins = ["shardd.testing"]

def test_it(shardd_server):
    with SyncClient(shardd_server.url) as client:
        assert client.create_stream("s").name == "s"
"""


def test_servers_beside_each_other_know_nothing_of_each_other(tmp_path: Path) -> None:
    with server() as first, server(data=tmp_path / "kept") as second:
        with SyncClient(first.url) as one, SyncClient(second.url) as other:
            one.create_stream("a")
            other.create_stream("b")
            assert [each.name for each in one.streams()] == ["a"]
        temporary = first.data
    assert not temporary.exists()
    assert first.process.returncode == second.process.returncode == 0
    with server(data=tmp_path / "kept") as again, SyncClient(again.url) as client:
        assert [each.name for each in client.streams()] == ["b"]


def test_a_server_may_have_more_ways_in() -> None:
    more = {"SHARDD_METRICS_ENABLED": "true", "SHARDD_METRICS_ADDRESS": "127.0.0.1:0"}
    with server(more) as running, SyncClient(running.url) as client:
        client.ping()
        assert re.search(r", metrics 127\.0\.0\.1:\d+, ready\n", running.log.read_text())


def test_one_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="no_such_level"), server({"SHARDD_SYSTEM_LOGGING_LEVEL": "no_such_level"}):
        raise AssertionError("it started")


def test_the_fixture_serves_a_project(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_project.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
