"""A file system that can be made to stand still: ext4 in a loop device, frozen by fsfreeze.

Whoever writes to it then sleeps in state D until it is thawed; what is cached can be read. It is always thawed: by the
end of `frozen()`, after `FREEZE_MAX_S`, and when the test run dies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SIZE_BYTES: Final = 256 << 20
FREEZE_MAX_S: Final = 60
_TOOLS: Final = ("mkfs.ext4", "mount", "umount", "fsfreeze")


class FrozenDisk:
    """An empty file system that is mounted at `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        # its end of the pipe closes with this process, however that ends
        thaw = f"read -t {FREEZE_MAX_S} line; fsfreeze -u '{self.place}' 2>/dev/null; true"
        guard = subprocess.Popen(["bash", "-c", thaw], stdin=subprocess.PIPE, start_new_session=True)
        try:
            _run("fsfreeze", "-f", str(self.place))
            yield
        finally:
            guard.communicate(timeout=FREEZE_MAX_S)


@contextlib.contextmanager
def mounted_disk(place: Path) -> Iterator[FrozenDisk]:
    """Skips the test where a loop device cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a loop device needs root")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    image = place.with_name(f"{place.name}.ext4")
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    place.mkdir()
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    made = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a loop device cannot be mounted here: {made.stderr.strip()}")
    try:
        (place / "lost+found").rmdir()
        yield FrozenDisk(place)
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], capture_output=True, check=False)
        _run("umount", "--lazy", str(place))
        image.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
