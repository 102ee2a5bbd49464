"""Keys of access tokens: from a file that somebody has written, or from one that the server makes."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from shardd.config.http import KEY_BYTES_MIN, Http
from shardd.server.data_directory import write_atomically
from shardd.server.errors import StartupError

KEY_FILE_NAME: Final = "access.key"
KEYS_MAX: Final = 8
_FILE_BYTES_MAX: Final = 16 << 10
_MADE_BYTES: Final = 32


def read_access_keys(http: Http, data_directory: Path) -> list[bytes]:
    """The first one signs. None without a door for HTTP. Raises StartupError."""
    if not http.enabled:
        return []
    path = Path(http.jwt.key_file) if http.jwt.key_file else data_directory / KEY_FILE_NAME
    try:
        if not http.jwt.key_file and not path.exists():
            write_atomically(path, secrets.token_hex(_MADE_BYTES).encode() + b"\n")
        return _read(path)
    except OSError as error:
        raise StartupError(f"http.jwt.key_file: {path}: {error.strerror}") from error


def _read(path: Path) -> list[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StartupError(f"http.jwt.key_file: {path} is no file")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise StartupError(f"http.jwt.key_file: others may read or write {path}; its mode must be 0600")
        data = file.read(_FILE_BYTES_MAX + 1)
    keys = [line.strip() for line in data.splitlines() if line.strip()]
    if len(data) > _FILE_BYTES_MAX or not 1 <= len(keys) <= KEYS_MAX:
        raise StartupError(f"http.jwt.key_file: {path} does not hold 1 to {KEYS_MAX} keys, one on each line")
    if min(map(len, keys)) < KEY_BYTES_MIN:
        raise StartupError(f"http.jwt.key_file: {path} has a key of less than {KEY_BYTES_MIN} characters")
    return keys
