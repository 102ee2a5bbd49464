"""`run_on_default_port.py DIRECTORY PYTHON SCRIPT VERSION ARGUMENTS...` in a network of its own: a server on
127.0.0.1:8090, where iggy-py before 0.2.5 looks for it, and the script of a client. Prints what the script printed."""

import fcntl
import socket
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.server import Server

GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
INTERFACE = struct.Struct("16sH14x")
TIMEOUT_S = 120


def loopback_up() -> None:
    with socket.socket() as any_socket:
        answer = fcntl.ioctl(any_socket, GET_FLAGS, INTERFACE.pack(b"lo", 0))
        flags = INTERFACE.unpack(answer)[1]
        fcntl.ioctl(any_socket, SET_FLAGS, INTERFACE.pack(b"lo", flags | UP))


if __name__ == "__main__":
    loopback_up()
    with Server(Path(sys.argv[1]), {"SHARDD_TCP_ADDRESS": "127.0.0.1:8090"}) as server:
        command = [sys.argv[2], sys.argv[3], sys.argv[4], server.address, *sys.argv[5:]]
        print(subprocess.run(command, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True).stdout, end="")
