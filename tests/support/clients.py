"""Runs a script in the environment of a released client; the script prints one JSON value per line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.venvs import client_python

RUN_TIMEOUT_S = 240.0


def connection_string(address: str) -> str:
    """Logs in after each (re)connect; tries again every 100 ms after a lost connection."""
    return (
        f"iggy+tcp://iggy:iggy@{address}?reconnection_retries=100&reconnection_interval=100ms&reestablish_after=100ms"
    )


# Threads of the released clients may abort while the interpreter ends, after all was done: it ends without that.
_RUN: Final = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def start(version: str, script: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Starts a script without waiting; its output is a pipe."""
    command = [str(client_python(version)), "-c", _RUN, str(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(version: str, script: Path, arguments: Sequence[str], *, timeout_s: float = RUN_TIMEOUT_S) -> list[Any]:
    """The JSON values that the script printed; AssertionError with its error output when it fails or takes too long."""
    process = start(version, script, arguments)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"{script.name} with {version} took more than {timeout_s} s\n{output}\n{errors}") from None
    assert process.returncode == 0, f"{script.name} with {version} ended with {process.returncode}\n{output}\n{errors}"
    return [json.loads(line) for line in output.splitlines()]
