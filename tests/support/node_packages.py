"""Packages of the npm registry for tests, made once under `.venvs/` of the project, as `venvs.py` does for Python."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.support.venvs import VENVS

NODE: Final = shutil.which("node")
INSTALL_TIMEOUT_S: Final = 120


def node_modules(package: str, version: str) -> Path:
    """A directory for NODE_PATH with this package, which runs no scripts of its own. LookupError: there is no npm, or
    its registry does not have it here."""
    if NODE is None or shutil.which("npm") is None:
        raise LookupError("there is no node")
    directory = VENVS / f"node-{package}-{version}"
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "installed").exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(directory)]
            try:
                done = subprocess.run(
                    [*command, f"{package}@{version}"], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                raise LookupError("the registry does not answer") from None
            if done.returncode != 0:
                raise LookupError(done.stderr.strip())
            (directory / "installed").touch()
    return directory / "node_modules"
