"""What the crash tests do to a server and to its files."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import xxhash

from tests.support import load, wire
from tests.support.server import Server

WAIT_S = 60.0


def kill9(pid: int) -> None:
    """SIGKILL and wait until the process is gone (or a zombie that its parent has to collect).

    Another process gives the signal: from here it would come right when a thread of the load has let go of the
    interpreter, hence always at the same moment of a request.
    """
    subprocess.run([sys.executable, "-I", "-S", "-c", f"import os; os.kill({pid}, {int(signal.SIGKILL)})"], check=False)
    wait_until(lambda: not is_running(pid), f"process {pid} is gone")


def kill_all(server: Server) -> None:
    """The supervisor, and the workers that do not die with it at once."""
    workers = server.worker_pids()
    server.kill_supervisor()
    for pid in workers:
        if is_running(pid):
            kill9(pid)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> float:
    """Seconds until the condition held; TimeoutError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)
    return time.monotonic() - began


def wait_until_none_is_left(
    left: Callable[[], Sequence[object]], timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> float:
    """Seconds until nobody was left; TimeoutError when for `timeout_s` they did not become fewer. A busy machine may
    serve them one by one."""
    began = since = clock()
    count = len(left())
    while count > 0:
        time.sleep(0.01)
        now, fewer = clock(), len(left())
        if fewer < count:
            count, since = fewer, now
        elif now - since > timeout_s:
            raise TimeoutError(f"for {timeout_s} s nobody of {count}")
    return clock() - began


def wait_until_served(
    address: str, stream: int | str, topic: int | str, partitions: Sequence[int], timeout_s: float = WAIT_S
) -> None:
    load.wait_until_answered(load.Target(address, stream, topic), partitions, deadline_s=timeout_s)


def shard_of(server: Server, connection: wire.Wire) -> int | None:
    """The shard whose process holds the other end of this connection; None while it is in a listening queue."""
    own = connection.socket.getsockname()
    for shard, pid in enumerate(server.worker_pids()):
        for peer in psutil.Process(pid).net_connections(kind="tcp4"):
            if peer.raddr and (peer.raddr.ip, peer.raddr.port) == own:
                return shard
    return None


def connection_on(server: Server, shard: int, attempts_max: int = 64) -> wire.Wire:
    """A logged-in connection that this shard serves. Those of other shards stay open meanwhile: a new one goes to the
    shard with the fewest."""
    with ExitStack() as others:
        for _ in range(attempts_max):
            connection = wire.connect(server.address)
            if shard_of(server, connection) == shard:
                return connection
            others.callback(connection.close)
    raise TimeoutError(f"none of {attempts_max} connections came to shard {shard}")


# ---- files of a stopped server (docs/formats.md#directory)
def log_path(data: Path, stream: int, topic: int, partition: int, start_offset: int = 0) -> Path:
    return data / f"streams/{stream}/topics/{topic}/partitions/{partition}" / f"{start_offset:020}.log"


def record(message: wire.Message, offset: int, payload: bytes, timestamp_us: int) -> bytes:
    """The stored form of a message with a right checksum."""
    body = message.id + struct.pack("<QQQ", offset, timestamp_us, message.origin_timestamp_us)
    body += struct.pack("<IIQ", len(message.headers), len(payload), 0) + payload + message.headers
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body


def rewrite_log(path: Path, messages: Sequence[wire.Message]) -> None:
    """Replaces a log by these messages, with dense offsets, rising clocks and right checksums, without index and
    manifest, which would tell of the forgery."""
    clocks = sorted(message.timestamp_us for message in messages)
    data = [record(item, offset, item.payload, clocks[offset]) for offset, item in enumerate(messages)]
    path.write_bytes(b"".join(data))
    for suffix in (".index", ".manifest"):
        path.with_suffix(suffix).unlink(missing_ok=True)
