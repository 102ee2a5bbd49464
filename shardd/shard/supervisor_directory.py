"""The data directory as the supervisor sees it: its lock, `info.json`, and the files that describe the running server.

`info.json`: {"magic": "shardd-data", "format_version": 1, "created_at": "<RFC 3339>"}.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from shardd.log.layout import STREAMS, parse_id, sync_directory
from shardd.metadata.disk import NO_ROOM
from shardd.metadata.reserve import Reserve
from shardd.migration.errors import MigrationError
from shardd.migration.iggy_directory import LOG_KEPT, STATE_DIRECTORY, iggy_log, import_directory
from shardd.shard.supervisor_errors import StartupError

LOCK_NAME: Final = ".lock"
INFO_NAME: Final = "info.json"
STATE_NAME: Final = "state.messages"
RUNTIME_CONFIG_NAME: Final = "current_config.toml"
MAGIC: Final = "shardd-data"
FORMAT_VERSION: Final = 1
_LOCK_WAIT_S: Final = 1.0  # workers of a supervisor that was killed end within that time
_log = logging.getLogger(__name__)


class DirectoryInfo(msgspec.Struct, frozen=True):
    """Contents of `info.json`."""

    magic: str
    format_version: int
    created_at: str


def lock_directory(directory: Path) -> int:
    """Makes the directory when missing and takes its lock; returns the descriptor. Raises StartupError."""
    try:
        _make(directory)
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"data directory {directory}: {error.strerror}") from error
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                os.close(fd)
                raise StartupError(
                    f"data directory {directory} is in use by another server (process {holder or 'unknown'})"
                ) from None
            time.sleep(0.02)
    _write_holder(fd)
    return fd


def _make(directory: Path) -> None:
    """The directory and its ancestors; the names of those that were missing are on the device when this returns."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_directory(path.parent)


def prepare_directory(directory: Path, fresh: bool) -> None:
    """Checks `info.json` or makes it; `fresh` removes all data first. A directory of Apache Iggy is imported. The lock
    must be held. Raises StartupError."""
    try:
        info = _read_info(directory)
        if fresh:
            _wipe(directory, info)
            info = None
        if info is None:
            _take_over(directory)
            _write_info(directory)
    except OSError as error:
        raise StartupError(f"data directory {directory}: {error}") from error


def _take_over(directory: Path) -> None:
    """Imports a directory of Apache Iggy; refuses one that is only half there. Without `info.json`."""
    if os.path.lexists(iggy_log(directory)):
        try:
            state = import_directory(directory)
        except MigrationError as error:
            raise StartupError(str(error)) from error
        _log.info(
            "imported the data directory of Apache Iggy %s: %d streams, %d users; its state log is kept as %s/%s",
            directory, len(state.streams), len(state.users), STATE_DIRECTORY, LOG_KEPT,
        )  # fmt: skip
    elif not (directory / STATE_NAME).exists() and _holds_streams(directory / STREAMS):
        raise StartupError(f"{directory} holds streams, but neither {STATE_NAME} nor {STATE_DIRECTORY}/log knows them")


def _holds_streams(directory: Path) -> bool:
    try:
        return any(parse_id(entry.name) is not None for entry in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read_info(directory: Path) -> DirectoryInfo | None:
    path = directory / INFO_NAME
    try:
        info = msgspec.json.decode(path.read_bytes(), type=DirectoryInfo)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StartupError(f"{path} is damaged: {error}") from error
    if info.magic != MAGIC:
        raise StartupError(f"{path}: this is no data directory of shardd")
    if info.format_version != FORMAT_VERSION:
        raise StartupError(f"{path}: format version {info.format_version} is unknown; this is version {FORMAT_VERSION}")
    return info


def _wipe(directory: Path, info: DirectoryInfo | None) -> None:
    entries = [entry for entry in directory.iterdir() if entry.name != LOCK_NAME]
    if entries and info is None:
        raise StartupError(f"{directory} is not empty and no data directory of shardd; nothing was removed")
    # info.json goes last: until then a wipe that was interrupted can be repeated
    for entry in sorted(entries, key=lambda entry: entry.name == INFO_NAME):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _log.info("removed all data below %s", directory)


def _write_info(directory: Path) -> None:
    created_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    info = DirectoryInfo(MAGIC, FORMAT_VERSION, created_at)
    write_atomically(directory / INFO_NAME, msgspec.json.encode(info) + b"\n")


def write_atomically(path: Path, data: bytes) -> None:
    """The file has all of `data` or does not change; on the device when this returns."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def _write_holder(fd: int) -> None:
    """In place, over what is there: a full disk has no new room for it, and it only serves a sentence."""
    text = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    except OSError as error:
        _log.warning("the process id cannot be written to %s: %s", LOCK_NAME, error.strerror)


def write_runtime_config(runtime_directory: Path, data_directory: Path, text: str) -> None:
    """Clients' harnesses take this file as the sign of a ready server. A full disk takes it from the reserve."""
    runtime_directory.mkdir(parents=True, exist_ok=True)
    try:
        write_atomically(runtime_directory / RUNTIME_CONFIG_NAME, text.encode())
    except OSError as error:
        if error.errno not in NO_ROOM or not Reserve(data_directory).release():
            raise
        write_atomically(runtime_directory / RUNTIME_CONFIG_NAME, text.encode())


def remove_runtime_config(runtime_directory: Path) -> None:
    (runtime_directory / RUNTIME_CONFIG_NAME).unlink(missing_ok=True)
