"""The example of docs/protocol/http.md works as it stands there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.doors.http_server import WAIT_S, HttpServer

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol" / "http.md"


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
