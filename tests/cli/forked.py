"""Runs commands in forks of one process that has imported everything, so that each costs little.

    python -P -m tests.cli.forked       a line of JSON for each command comes, and one goes: `Asked`, `Ended`

The fork has descriptors of its own and ends as the process of the command would."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Self

NOTHING: Final[Mapping[str, str]] = {}
_BOUND_S: Final = 60
_SWALLOWED: Final = 99  # of a command that ends well although its output was not taken


class Ended(NamedTuple):
    """`calls`: of functions in the main thread, where they were counted."""

    status: int
    stderr: str
    calls: int


class Forks:
    """A context manager. `environment`: of all commands, nothing else is in it."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        words = [sys.executable, "-P", "-m", "tests.cli.forked"]
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            words,
            env=environment | {"PYTHONPATH": root},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(
        self,
        words: Sequence[str],
        stdout: str = os.devnull,
        interrupt: int = -1,
        environment: Mapping[str, str] = NOTHING,
    ) -> Ended:
        """`interrupt`: SIGINT comes at this call of a function; 0: calls are counted."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"words": list(words), "stdout": stdout, "interrupt": interrupt, "environment": {**environment}}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


def _forked(asked: dict[str, Any]) -> Ended:
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as counted:
        child = os.fork()
        if child == 0:
            _command(asked, said.fileno(), counted.fileno())
        _, status = os.waitpid(child, 0)
        said.seek(0)
        counted.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, said.read().decode(errors="replace"), int(counted.read() or b"0"))


def _command(asked: dict[str, Any], stderr: int, counted: int) -> None:
    """Does not come back."""
    status: object = 1
    try:
        signal.alarm(_BOUND_S)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(asked["stdout"], os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        os.environ.update(asked["environment"])
        sys.argv = ["shardd", *asked["words"]]
        status = _status_of(asked["interrupt"], counted)
    except BaseException:  # as the interpreter shows it
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _status_of(interrupt: int, counted: int) -> object:
    from shardd.cli.start import main

    calls = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls == interrupt:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    if interrupt >= 0:
        sys.setprofile(profile)
    try:
        main()
    except SystemExit as ended:
        sys.setprofile(None)
        os.write(counted, b"%d" % calls)
        output: Any = sys.stdout.buffer
        return _SWALLOWED if output.raw._failed and not ended.code else ended.code
    return 0


def _main() -> None:
    import asyncio  # noqa: F401

    import shardd.cli.main
    import shardd.client  # noqa: F401
    from shardd.cli.families import ALONE, FAMILIES

    for module, _ in (FAMILIES | ALONE).values():
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    _main()
