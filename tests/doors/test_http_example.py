"""The examples of docs/protocol/http.md and of the README work as they stand there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.doors.http_server import WAIT_S, HttpServer

PROJECT = Path(__file__).parents[2]
DEFAULT = "localhost:3000"
DOCUMENT = PROJECT / "docs" / "protocol" / "http.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="it needs curl")
def test_the_example_can_be_typed(tmp_path: Path) -> None:
    example = DOCUMENT.read_text().partition("```sh\n")[2].partition("```")[0]
    with HttpServer(tmp_path / "data") as server:
        host, port = server.http_address
        done = subprocess.run(
            ["sh", "-ec", f"URL=http://{host}:{port}\n{example}"], capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0, done
        assert '"payload":"aGVsbG8="' in done.stdout
        [stream] = server.root().done("GET", "/streams")
        assert (stream["name"], stream["messages_count"]) == ("orders", 1)


@pytest.mark.skipif(shutil.which("curl") is None, reason="it needs curl")
def test_the_example_of_the_readme_can_be_typed(tmp_path: Path) -> None:
    example = (PROJECT / "README.md").read_text().partition("```sh\nTOKEN=")[2].partition("```")[0]
    assert example.count(DEFAULT) == 2
    with HttpServer(tmp_path / "data") as server:
        root = server.root()
        root.done("POST", "/streams", {"name": "orders"})
        root.done("POST", "/streams/orders/topics", {"name": "placed", "partitions_count": 3})
        sent = {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": [{"payload": "Zmlyc3Q="}]}
        root.done("POST", "/streams/orders/topics/placed/messages", sent)
        host, port = server.http_address
        typed = f"TOKEN={example}".replace(DEFAULT, f"{host}:{port}")
        done = subprocess.run(["sh", "-ec", typed], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done
        assert '"payload":"Zmlyc3Q="' in done.stdout
