"""A line for each request over HTTP when `http.access_log` asks for it: no token, no query, no body."""

from __future__ import annotations

import re
from pathlib import Path

from tests.doors.http_server import HttpServer
from tests.doors.metrics_server import eventually

LINE = re.compile(r" INFO door-http 127\.0\.0\.1:\d+ (\w+) (\S+) (\d+) (\d+) bytes \d+\.\d ms$", re.M)


def test_each_request_is_a_line(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data", {"SHARDD_HTTP_ACCESS_LOG": "true"}) as server:
        root = server.root()
        root.done("POST", "/streams", {"name": "s"})
        root.get("/streams/s?secret=hidden-query")
        root.get("/streams/a%0Ab%20INFO")
        server.client().get("/streams")
        root.ask("GET", "/ping")
        eventually(lambda: len(LINE.findall(server.log())) >= 6, server.log)
        log, found = server.log(), LINE.findall(server.log())
        assert [(method, path, int(status)) for method, path, status, _ in found] == [
            ("POST", "/users/login", 200),
            ("POST", "/streams", 200),
            ("GET", "/streams/s", 200),
            ("GET", "/streams/a%0Ab%20INFO", 404),
            ("GET", "/streams", 401),
            ("GET", "/ping", 200),
        ]
        assert [int(size) for *_, size in found][-2:] == [0, 4]
        assert root.token not in log and "hidden-query" not in log


def test_refusal_of_an_unknown_host_is_a_line(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data", {"SHARDD_HTTP_ACCESS_LOG": "true"}) as server:
        assert server.client().ask("GET", "/ping", headers={"Host": "rebound.example"}).status == 421
        eventually(lambda: [each[:3] for each in LINE.findall(server.log())] == [("GET", "/ping", "421")], server.log)


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data") as server:
        server.root().get("/streams")
        assert not LINE.findall(server.log())
