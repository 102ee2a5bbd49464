"""A file of the metadata, read at once."""

from __future__ import annotations

import os
from pathlib import Path

from shardd.metadata.errors import LogError
from shardd.runtime.disk import Disk, close_quietly, read_file


def read_whole(path: Path, disk: Disk) -> bytes | None:
    """None: there is no such file. LogError with a sentence when it cannot be opened or read."""
    try:
        descriptor = disk.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        return read_file(disk, descriptor)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        close_quietly(disk, descriptor)
