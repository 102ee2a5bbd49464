from typing import Any, NoReturn

def run(
    slots: Any,
    plans: bytes,
    payload: bytes,
    warmup_ns: int,
    parent: int,
    channels: list[object],
    broken_fd: int = -1,
    opened_fd: int = -1,
    /,
) -> tuple[list[bytes], int, int, int, int, int, int, int, int, int, int]:
    """Runs actors (native/load/load.h) to their ends: their records; of the measurement CPU and wall time, and how long
    it waited for a CPU, in nanoseconds; empty polls; bytes sent and received; broken connections, refused requests,
    requests sent again, and the longest interruption in nanoseconds. RuntimeError with a sentence.

    With two pipes that do not block broken connections are replaced: an index of an actor (u32) goes into the first,
    `opened` answers through the second."""

def opened(pipe: int, actor: int, fd: int, channel: object, session: tuple[int, int, int, int], /) -> None:
    """In place of a broken connection. OSError."""

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
