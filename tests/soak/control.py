"""The control of a soak: how long requests take that no server of ours answers, from the same process, meanwhile.

A process of its own that sends back what it gets, and clients of it with the pauses of the producers. Where a machine
gets busier for everybody, their p99 grows as that of the producers does: what is judged is the one over the other.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time

from tests.soak.load import SEND_PAUSE_S, Latencies

CLIENTS = 8
REQUEST_BYTES = 1024
TIMEOUT_S = 60.0
ECHO = """
import socket, threading
def serve(peer):
    with peer:
        while received := peer.recv(65536):
            peer.sendall(received)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Client(threading.Thread):
    def __init__(self, port: int, latencies: Latencies, stopping: threading.Event, seed: int) -> None:
        super().__init__(name="control", daemon=True)
        self._port, self._latencies, self._stopping, self._random = port, latencies, stopping, random.Random(seed)

    def run(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), TIMEOUT_S) as echo:
            while not self._stopping.wait(self._random.uniform(0, 2 * SEND_PAUSE_S)):
                began = time.monotonic()
                echo.sendall(bytes(REQUEST_BYTES))
                left = REQUEST_BYTES
                while left:
                    received = len(echo.recv(left))
                    if not received:
                        return
                    left -= received
                self._latencies.add(time.monotonic() - began)


class Control:
    """Runs from `start` to `stop`; `latencies` are of its requests."""

    def __init__(self, seed: int) -> None:
        self.latencies = Latencies()
        self._stopping = threading.Event()
        self._process = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._clients = [Client(port, self.latencies, self._stopping, seed + number) for number in range(CLIENTS)]

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        self._stopping.set()
        self._process.kill()
        self._process.wait()
