"""The `ws` package of Node, which most programs there use: messages, fragments, pings, ends, and a compression that it
offers and does not get; over `ws` and over `wss`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_tls import NAMES
from tests.server.test_websocket_tls import over_tls
from tests.server.websocket_server import address_of
from tests.support.certificates import Authority
from tests.support.node_packages import NODE, node_modules
from tests.support.server import ONE_SHARD, Server

VERSION = "8.18.3"
PROGRAM = """
const { WebSocket } = require("ws");
const socket = new WebSocket(process.argv[1], { perMessageDeflate: true });
const ping = Buffer.from([4, 0, 0, 0, 1, 0, 0, 0]);
let bytes = 0, pongs = 0;
socket.on("open", () => {
  for (let i = 0; i < 100; i++) {
    socket.send(ping.subarray(0, 3), { fin: false });
    if (i % 10 === 0) socket.ping(Buffer.from(String(i)));
    socket.send(ping.subarray(3));
  }
});
socket.on("message", (data, isBinary) => {
  bytes += isBinary ? data.length : 0;
  if (bytes === 800) socket.close(3000, "ende");
});
socket.on("pong", () => pongs++);
socket.on("error", (error) => { console.log(JSON.stringify({ error: error.code })); process.exit(0); });
socket.on("close", (code, reason) =>
  console.log(JSON.stringify({ bytes, code, ponged: pongs > 0, extensions: socket.extensions })));
"""
SERVED = {"bytes": 800, "code": 3000, "ponged": True, "extensions": ""}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return node_modules("ws", VERSION)
    except LookupError as reason:
        pytest.skip(str(reason))


def run(modules: Path, url: str, **variables: str) -> Any:
    done = subprocess.run(
        [str(NODE), "-e", PROGRAM, url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"NODE_PATH": str(modules)} | variables,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_it_is_served_and_judges_certificates_itself(tmp_path: Path, modules: Path) -> None:
    authority = Authority.make(tmp_path)
    env = over_tls(authority.sign("shown", names=NAMES), mode="both") | ONE_SHARD
    with Server(tmp_path / "data", env) as server:
        port = address_of(server).rpartition(":")[2]
        assert run(modules, f"ws://127.0.0.1:{port}/") == SERVED
        trusted = str(authority.certificate)
        assert run(modules, f"wss://localhost:{port}/any?x", NODE_EXTRA_CA_CERTS=trusted) == SERVED
        assert run(modules, f"wss://localhost:{port}/") == {"error": "UNABLE_TO_VERIFY_LEAF_SIGNATURE"}
