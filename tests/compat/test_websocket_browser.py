"""A page in a browser (chromium) over `ws` and `wss`: what it may reach, and that it is served."""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_tls import NAMES
from tests.server.test_websocket_tls import over_tls
from tests.server.websocket_server import address_of
from tests.support import certificates
from tests.support.certificates import Authority
from tests.support.server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"), pytest.mark.timeout(300)]

PAGE = """<!doctype html><script>
const told = (what) => fetch("/told", { method: "POST", body: JSON.stringify(what) });
const run = (url) => new Promise((done) => {
  const socket = new WebSocket(url), ping = new Uint8Array([4, 0, 0, 0, 1, 0, 0, 0]);
  let bytes = 0;
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { for (let i = 0; i < 100; i++) socket.send(ping); };
  socket.onmessage = (event) => {
    bytes += event.data.byteLength;
    if (bytes === 800) socket.close(3000, "end");
  };
  socket.onclose = (event) => done([bytes, event.code, event.wasClean]);
});
(async () => {
  const results = [];
  for (const url of new URLSearchParams(location.search).getAll("url")) results.push(await run(url));
  await told(results);
})();
</script>"""


@contextmanager
def site() -> Iterator[tuple[str, queue.Queue[Any]]]:
    """A web site with the page; its origin, and what the page has told."""
    told: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(PAGE.encode() if self.path.startswith("/?") else b"")

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", told
        finally:
            server.shutdown()
            thread.join()


def visit(page: str, told: queue.Queue[Any], profile: Path, trusted: Path) -> Any:
    """What the page tells, in a browser that trusts the key of this certificate."""
    key = certificates.run("x509", "-in", str(trusted), "-noout", "-pubkey")
    der = base64.b64decode("".join(line for line in key.splitlines() if "-----" not in line))
    pin = base64.b64encode(hashlib.sha256(der).digest()).decode()
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-first-run", f"--user-data-dir={profile}", f"--ignore-certificate-errors-spki-list={pin}", page]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as browser:
        try:
            return told.get(timeout=120)
        finally:
            browser.send_signal(signal.SIGTERM)
            try:
                browser.wait(30)
            except subprocess.TimeoutExpired:
                browser.kill()


def test_a_page_is_served_over_ws_and_wss_where_its_origin_is_listed(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    certificate, other = authority.sign("shown", names=NAMES), authority.sign("another")
    with site() as (origin, told):
        env = over_tls(certificate, mode="both") | {"SHARDD_WEBSOCKET_ALLOWED_ORIGINS": origin}
        with Server(tmp_path / "data", env) as server:
            port = address_of(server).rpartition(":")[2]
            page = f"{origin}/?url=ws://127.0.0.1:{port}/&url=wss://localhost:{port}/any?x"
            assert visit(page, told, tmp_path / "profile", certificate) == [[800, 3000, True]] * 2
            # it trusts nobody who could be this server
            assert visit(page, told, tmp_path / "distrust", other) == [[800, 3000, True], [0, 1006, False]]
            # a page of somebody else
            with site() as (foreign, said):
                page = f"{foreign}/?url=ws://127.0.0.1:{port}/&url=wss://localhost:{port}/"
                assert visit(page, said, tmp_path / "foreign", certificate) == [[0, 1006, False]] * 2
