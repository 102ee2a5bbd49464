"""Idle, dripping and half-open connections do not slow the others down."""

from __future__ import annotations

import socket
import threading
import time
from typing import Final

import pytest

from tests.hostile import crowd
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving

IDLE = 2_000
DRIPPING = 50
HALF_OPEN = 50
PING_MAX_MS = 250.0  # in the middle: a loaded machine may take a process off its CPU at any time
SERVER: Final = Serving(env={"SHARDD_SERVER_CONNECTIONS_MAX": "8000"}, fill=lambda _: crowd.allow_descriptors(8192))


class Dripper(threading.Thread):
    """Sends one byte of a frame on each connection in turn, and counts the answers to whole frames."""

    def __init__(self, connections: list[wire.Wire], frame: bytes) -> None:
        super().__init__(daemon=True)
        self.connections = connections
        self.frame = frame
        self.stopping = threading.Event()
        self.whole_frames = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                for position in range(len(self.frame)):
                    for connection in self.connections:
                        connection.send_bytes(self.frame[position : position + 1])
                for connection in self.connections:
                    if connection.reply() != (0, b""):
                        raise ValueError("a dripped frame got another answer")
                    self.whole_frames += 1
        except (OSError, ValueError) as problem:
            self.failure = problem


def assert_quick(times_ms: list[float]) -> None:
    middle, high, worst = times_ms[len(times_ms) // 2], times_ms[len(times_ms) * 99 // 100], times_ms[-1]
    print(f"{len(times_ms)} pings: p50 {middle:.2f} ms, p99 {high:.2f} ms, max {worst:.1f} ms")
    assert middle < PING_MAX_MS


@pytest.mark.io_engine
def test_two_thousand_connections_leave_pings_quick(server: Server) -> None:
    with crowd.crowd(server.address, IDLE, login=False) as idle:
        with crowd.crowd(server.address, 8, login=True) as watched:
            assert_quick(crowd.ping_times_ms(watched, 50))
        for connection in idle[::10]:
            connection.ping()


def test_dripping_and_half_open_connections_leave_pings_quick(server: Server) -> None:
    drip = wire.frame(wire.PING, bytes(60))
    with (
        crowd.crowd(server.address, DRIPPING, login=False) as dripping,
        crowd.crowd(server.address, HALF_OPEN, login=False) as half_open,
        crowd.crowd(server.address, 8, login=True) as watched,
    ):
        dripper = Dripper(dripping, drip)
        dripper.start()
        for number, connection in enumerate(half_open):
            connection.send_bytes(wire.frame(wire.PING, bytes(1000))[: 1 + number * 15])
            if number % 2:
                connection.socket.shutdown(socket.SHUT_WR)
        assert_quick(crowd.ping_times_ms(watched, 50))
        dripper.stopping.set()
        dripper.join(30)
        assert dripper.failure is None
        assert dripper.whole_frames >= DRIPPING
        for connection in half_open[1::2]:
            assert crowd.has_ended(connection, 10.0), "a connection that the client half-closed stays open"


@pytest.mark.io_engine
def test_frame_that_makes_no_progress_is_given_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    environment = {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "1 s"}
    server = Server(tmp_path_factory.mktemp("progress"), env=environment)
    server.start()
    try:
        stuck, idle = wire.connect(server.address), wire.connect(server.address)
        stuck.send_bytes(wire.frame(wire.SEND_MESSAGES, bytes(1000))[:500])
        began = time.monotonic()
        assert crowd.has_ended(stuck, 20.0)
        assert time.monotonic() - began > 0.5
        idle.ping()  # a connection between frames may be silent as long as it likes
        idle.close()
        stuck.close()
    finally:
        server.stop()
