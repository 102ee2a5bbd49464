"""A crowd that reads no answers, in a process of its own: what the sockets of clients keep is not the server's.

    python -m tests.doors.unread_crowd HOST PORT COUNT      (requests of each connection on standard input, in hex)

Says "ready" when all has been sent that the server takes, and stays until its input ends."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Final

RECEIVE_BYTES: Final = 4096


def connected(host: str, port: int, requests: bytes) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    made.settimeout(60)
    made.connect((host, port))
    made.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        made.send(requests)
    return made


def main() -> None:
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    requests = bytes.fromhex(sys.stdin.readline())
    crowd = [connected(host, port, requests) for _ in range(count)]
    print("ready", len(crowd), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
