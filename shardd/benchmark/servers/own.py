"""shardd of this installation, for one measurement."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

import shardd
from shardd import __version__
from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import START_TIMEOUT_S, Places, Started, plain_environment
from shardd.benchmark.servers.connection import Connection
from shardd.benchmark.servers.wire import Wire
from shardd.client.values import Stats

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor

_MEANINGS: Final = {
    "memory": "memory: acknowledged from memory",
    "written": "written: written to the file before the answer, fdatasync every second",
    "durable": "durable: fdatasync before the answer",
}


_GIT_TIMEOUT_S: Final = 10.0
_WORKER: Final = re.compile(r"shardd: shard (\d+)")


class OwnShardd(Started):
    """Reached as the options say; TLS has a certificate of its own, for localhost."""

    name = "shardd"

    def __init__(self) -> None:
        super().__init__()
        self._reached_port = 0
        self._socket = ""
        self._wire = Wire()

    def check(self, options: Options) -> None:
        if options.tls is not None and options.tls.verify and not options.tls.ca_file:
            raise BenchError("the certificate of a server of its own is signed by nobody: it cannot be verified")

    def start(self, options: Options) -> None:
        directory = self.make_directory(options)
        self.version, self.durability = f"{__version__}{_commit()}", _MEANINGS[options.durability]
        if options.unix_path:  # not in the directory of the data: paths of sockets are short
            self._socket = f"{tempfile.mkdtemp(prefix='shardd-bench-')}/socket"
        environment = plain_environment() | {
            "SHARDD_SYSTEM_PATH": str(directory / "data"),
            "SHARDD_TCP_ADDRESS": "127.0.0.1:0",
            "SHARDD_SYSTEM_PARTITION_ACK": options.durability,
            **_doors(options, self._socket),
            **dict(pair.split("=", 1) for pair in options.server_settings),
        }
        command = [sys.executable, "-P", "-m", "shardd", "serve", "--with-default-root-credentials"]
        self.run(command, options, environment)
        config = directory / "data" / "runtime" / "current_config.toml"
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.is_running() and not config.exists():
            time.sleep(0.02)
        if config.exists():
            served = tomllib.loads(config.read_text())
            self.port = _port(served["tcp"]["address"])
            self._reached_port = _port(served["websocket"]["address"]) if options.websocket else self.port
        self.wait_for("its log ends with")

    def stop(self) -> None:
        super().stop()
        if self._socket:
            shutil.rmtree(Path(self._socket).parent, ignore_errors=True)

    def workers(self) -> dict[int, psutil.Process]:
        """Those that run now, by shard."""
        found: dict[int, psutil.Process] = {}
        try:
            for child in psutil.Process(self.process_id).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    title = _WORKER.match(" ".join(child.cmdline()))
                    if title is not None and child.status() != psutil.STATUS_ZOMBIE:
                        found[int(title[1])] = child
        except psutil.NoSuchProcess:
            pass
        return found

    def dialect_of(self, options: Options) -> int:
        return self._wire.dialect_of(options)

    def _reached(self, options: Options) -> Options:
        address = f"127.0.0.1:{self._reached_port}"
        return replace(
            options, own=False, server_address=address, unix_path=self._socket, username="iggy", password="iggy"
        )

    def prepare(self, options: Options) -> Places:
        return self._wire.prepare(self._reached(options))

    def open(self, options: Options, actor: Actor) -> Connection:
        return self._wire.open(self._reached(options), actor)

    def stats(self, options: Options) -> Stats | None:
        return self._wire.stats(self._reached(options))


def _commit() -> str:
    """Of the checkout that this runs from; empty when it is an installed package."""
    root = Path(shardd.__file__).parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f", commit {found.stdout.strip()}"


def _doors(options: Options, unix_path: str) -> dict[str, str]:
    """Settings of the way that is measured."""
    tls = {"TLS_ENABLED": "true", "TLS_SELF_SIGNED": "true"} if options.tls is not None else {}
    if options.websocket:
        doors = {"ENABLED": "true", "ADDRESS": "127.0.0.1:0", **tls}
        return {f"SHARDD_WEBSOCKET_{name}": value for name, value in doors.items()}
    found = {f"SHARDD_TCP_{name}": value for name, value in tls.items()}
    return found | ({"SHARDD_UNIX_PATH": unix_path} if unix_path else {})


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])
