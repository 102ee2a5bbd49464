from typing import Any, NoReturn

def run(
    slots: Any, plans: bytes, payload: bytes, warmup_ns: int, parent: int, channels: list[object], /
) -> tuple[list[bytes], int, int, int, int]:
    """Runs actors (native/load/load.h) to their ends: their records; of the measurement CPU and wall time, and how long
    it waited for a CPU, in nanoseconds; empty polls. RuntimeError with a sentence."""

def open_channel(
    fd: int, tls: bool, websocket: bool, verify: bool, name: str, ca_file: str, certificate: str, key: str, /
) -> object:
    """What lies on a connected, blocking socket (native/load/channel.h); it ends with the object, the socket does not.
    OSError with a sentence."""

def send_channel(channel: object, data: bytes, /) -> int:
    """OSError."""

def receive_channel(channel: object, /) -> bytes:
    """OSError; empty: the end."""

def floor(listener: int, directory: str, cpus: bytes, sync: bool, /) -> NoReturn:
    """Serves as the floor (native/load/floor.h) until the process is ended. `cpus`: an int for each thread, -1: not
    pinned."""
