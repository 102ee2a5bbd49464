"""The data directory as the supervisor sees it: its lock, and the files that describe the running server."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from shardd.log.directory_info import FORMAT_VERSION, INFO_NAME, MAGIC, DirectoryInfo, read_info, write_info
from shardd.log.file_modes import SECRET_MODE
from shardd.log.layout import STREAMS, incoming_directory, make_incoming, parse_id, sync_directory
from shardd.migration.errors import MigrationError
from shardd.migration.iggy_files import LOG_KEPT, STATE_DIRECTORY, file_of_a_later_server, iggy_log
from shardd.runtime.disk_errors import NO_ROOM
from shardd.server.errors import StartupError

LOCK_NAME: Final = ".lock"
STATE_NAME: Final = "state.messages"
RUNTIME_CONFIG_NAME: Final = "current_config.toml"
_LOCK_WAIT_S: Final = 5.0  # workers of a supervisor that was killed end within that time, on a busy machine, too
_log = logging.getLogger(__name__)


def lock_directory(directory: Path, wait_s: float = _LOCK_WAIT_S) -> int:
    """Makes the directory when missing and takes its lock; returns the descriptor. StartupError, also when another
    process still holds it after `wait_s`."""
    try:
        _make(directory)
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"data directory {directory}: {error.strerror}") from error
    deadline = time.monotonic() + wait_s
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
    """The directory and its ancestors. Until it has its `info.json` its name may not be on the device, nor those of
    ancestors that were missing: a power loss would take all of it away."""
    names = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    if not names and not (directory / INFO_NAME).exists():
        names = [directory]
    for path in names:
        with contextlib.suppress(PermissionError):  # then it was not made here
            sync_directory(path.parent)


def prepare_directory(directory: Path, fresh: bool) -> None:
    """Checks `info.json` or makes it; `fresh` removes all data first. A directory of Apache Iggy is imported. The lock
    must be held. Raises StartupError."""
    try:
        info = _known_info(directory)
        if fresh:
            _wipe(directory, info)
            info = None
        if info is None:
            _take_over(directory)
            created_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            write_info(directory, DirectoryInfo(MAGIC, FORMAT_VERSION, created_at))
        if not (directory / STATE_NAME).exists() and not _holds_streams(directory / STREAMS):
            from shardd.metadata.births import begin_directory  # a directory that exists needs none of the metadata

            begin_directory(directory)
        _prepare_incoming(directory)
    except OSError as error:
        raise StartupError(f"data directory {directory}: {error}") from error


def _prepare_incoming(directory: Path) -> None:
    """Segments that are archived make it when a full disk refuses it now. OSError."""
    try:
        make_incoming(directory)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _log.warning("%s cannot be made now: %s", incoming_directory(directory), error.strerror)


def _known_info(directory: Path) -> DirectoryInfo | None:
    try:
        return read_info(directory)
    except ValueError as error:
        raise StartupError(str(error)) from error


def _take_over(directory: Path) -> None:
    """Imports a directory of Apache Iggy; refuses one that is only half there. Without `info.json`."""
    later = file_of_a_later_server(directory)
    if later is not None:
        raise StartupError(f"{later} is of Apache Iggy 0.9 or later: only a directory of 0.8 can be taken over")
    if os.path.lexists(iggy_log(directory)):
        # imported where it is rare: a start without it is a third faster
        from shardd.migration.iggy_directory import import_directory

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


def write_atomically(path: Path, data: bytes) -> None:
    """The file has all of `data` or does not change; on the device when this returns. For the owner alone."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # whatever its mode is
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, SECRET_MODE), "wb") as file:
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
    runtime_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = runtime_directory / RUNTIME_CONFIG_NAME
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        from shardd.metadata.reserve import with_reserve  # and all of the metadata: rare, too

        with_reserve(data_directory, lambda: write_atomically(path, text.encode()))


def remove_runtime_config(runtime_directory: Path) -> None:
    (runtime_directory / RUNTIME_CONFIG_NAME).unlink(missing_ok=True)
