"""The door for HTTP as several processes, on CPUs of its own: one socket, one set of logins."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from shardd.cli.doors import doors_of
from shardd.config.loader import ConfigError, load_settings
from tests.doors.http_server import WAIT_S, HttpClient, HttpServer
from tests.support import wire
from tests.support.serving import Serving

PROCESSES, CPU = 3, max(os.sched_getaffinity(0))
NAMES = [f"door http{suffix}" for suffix in ("", "-2", "-3")]
ENV = {"SHARDD_HTTP_PROCESSES": str(PROCESSES), "SHARDD_HTTP_CPUS": str(CPU)}
CONNECTIONS_MAX = 48


def doors(server: HttpServer) -> dict[str, psutil.Process]:
    """All that serve, by name; waits for them."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = {}
        for child in psutil.Process(server.pid).children():
            for name in NAMES:
                if f"{name} serves (process {child.pid})" in server.log():
                    found[name] = child
        if len(found) == PROCESSES:
            return found
        time.sleep(0.02)
    raise TimeoutError(server.log())


SERVER: Final = Serving(HttpServer, ENV | {"SHARDD_SERVER_CONNECTIONS_MAX": str(CONNECTIONS_MAX)}, fill=doors)


def clients(server: HttpServer, token: str) -> Iterator[tuple[str, HttpClient]]:
    """One of each process, with its name."""
    running, missing = {each.pid: name for name, each in doors(server).items()}, set(NAMES)
    for _ in range(500):
        client = server.client(token)
        assert client.ask("GET", "/ping").status == 200
        port = client.port
        for pid, name in running.items():
            if any(each.raddr and each.raddr.port == port for each in psutil.Process(pid).net_connections("tcp")):
                if name in missing:
                    missing.discard(name)
                    yield name, client
                break
        client.close()
        if not missing:
            return
    raise AssertionError(f"nothing reaches {missing}")


def test_they_run_where_they_are_told_to(server: HttpServer) -> None:
    found = doors(server)
    assert sorted(found) == NAMES
    assert [each.cpu_affinity() for each in found.values()] == [[CPU]] * PROCESSES


def test_a_token_holds_in_every_process_and_ends_in_every_one(server: HttpServer) -> None:
    token = server.root().token
    seen = {name: client.ask("GET", "/streams").status for name, client in clients(server, token)}
    assert seen == dict.fromkeys(NAMES, 200)
    assert server.client(token).ask("DELETE", "/users/logout").status == 204
    seen = {name: client.ask("GET", "/streams").status for name, client in clients(server, token)}
    assert seen == dict.fromkeys(NAMES, 401)


def test_all_together_have_at_most_half_of_the_connections(server: HttpServer) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(contextlib.closing(server.client())) for _ in range(2 * CONNECTIONS_MAX)]
        served = 0
        for client in crowd:
            with contextlib.suppress(OSError):
                served += client.ask("GET", "/ping").status == 200
        assert 0 < served <= CONNECTIONS_MAX // 2
        with wire.connect(server.address) as tcp:
            tcp.request(wire.PING)


def test_one_that_dies_leaves_the_others_serving(server: HttpServer) -> None:
    before = doors(server)
    before["door http-2"].kill()
    before["door http-2"].wait(WAIT_S)
    served = 0
    for _ in range(20):
        with contextlib.suppress(OSError):
            served += server.root().ask("GET", "/streams").status == 200
    assert served >= 10
    assert doors(server)["door http-2"].pid != before["door http-2"].pid


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("HTTP_CPUS", "one", "no list of CPUs"),
        ("HTTP_CPUS", "3-1", "empty range"),
        ("HTTP_PROCESSES", "0", "1 to 16"),
        ("HTTP_PROCESSES", "17", "1 to 16"),
        ("HTTP_CPUS", "4095", "http.cpus: CPU 4095 of 4095 is not in this process's cpuset"),
        ("QUIC_CPUS", "0,4095", "quic.cpus: CPU 4095 of 0,4095 is not in this process's cpuset"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(key: str, text: str, sentence: str) -> None:
    env = {"SHARDD_HTTP_ENABLED": "true", "SHARDD_QUIC_ENABLED": "true", f"SHARDD_{key}": text}
    with pytest.raises(ConfigError) as refused:
        doors_of(load_settings(None, env).settings)
    assert sentence in str(refused.value)


def test_cpus_are_normalized() -> None:
    assert load_settings(None, {"SHARDD_HTTP_CPUS": "5,0-2,1"}).settings.http.cpus == "0-2,5"
