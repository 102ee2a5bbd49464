"""Runs the blocks of code of a page in their order, as a reader would.

| block | what is done |
|---|---|
| `sh` | `export` is kept, `shardd serve`, `-liftbridge` start it, other lines run |
| `console` | each line behind `$ ` runs in a shell; what stands below it is what it prints |
| `python` | a program of its own; a `text` block behind it is what it prints |
| `toml`, `text` | read with the page; `toml` is written to the file that its first line names |

Pages say 127.0.0.1:8090, and 127.0.0.1:9292 for clients of Liftbridge; the server listens on ports that the kernel
gives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.cli.transcript import without_what_varies

TIMEOUT_S: Final = 180.0
ADDRESS: Final = "127.0.0.1:8090"
LIFTBRIDGE: Final = "127.0.0.1:9292"
_MODULES: Final = {"shardd serve": ["shardd", "serve"], "shardd-liftbridge": ["shardd.cli.liftbridge"]}
_READY: Final = re.compile(r" tcp ([^\s,]+)(?:, liftbridge ([^\s,]+))?(?:, [^\n]*)?, ready\n")
_ON_ANY_PORT: Final = {
    "SHARDD_TCP_ADDRESS": "127.0.0.1:0",
    "SHARDD_LIFTBRIDGE_ADDRESS": "127.0.0.1:0",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": "127.0.0.1:0",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1",
}
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    return [Block(language, text) for language, text in _BLOCK.findall(page)]


class Reader:
    """Who follows a page, in a directory of its own. `python`: what runs its programs."""

    def __init__(self, directory: Path, python: Path | None = None) -> None:
        self.directory, self.address, self.liftbridge = directory, ADDRESS, LIFTBRIDGE
        self.python = python or Path(sys.executable)
        self.server: subprocess.Popen[bytes] | None = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_", "XDG_"))}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.variables = kept | {"PATH": path, "HOME": str(directory), "TERM": "dumb", "COLUMNS": "100"}

    def follow(self, page: str) -> Iterator[tuple[str, str]]:
        """(what a block prints, what the page says), of each that says something."""
        try:
            blocks = blocks_of(page)
            for number, block in enumerate(blocks):
                behind = blocks[number + 1] if number + 1 < len(blocks) else Block("", "")
                if block.language == "sh":
                    self._type(block.text)
                elif block.language == "console":
                    yield self._console(block.text), without_what_varies(self._of_this_server(block.text))
                elif block.language == "python":
                    shown = self._run([str(self.python), "-W", "error", "-c", self._of_this_server(block.text)])
                    yield shown, without_what_varies(behind.text) if behind.language == "text" else ""
                elif block.language == "toml":
                    name = block.text.partition("\n")[0].removeprefix("# ")
                    (self.directory / name).write_text(block.text)
                else:
                    assert block.language == "text", f"no block is of the language {block.language!r}"
        finally:
            if self.server is not None:
                self.server.terminate()
                self.server.wait(TIMEOUT_S)

    def _of_this_server(self, text: str) -> str:
        return text.replace(ADDRESS, self.address).replace(LIFTBRIDGE, self.liftbridge)

    def _type(self, lines: str) -> None:
        for line in lines.replace("\\\n", "").splitlines():
            words = self._of_this_server(line.partition("  #")[0].strip())
            if words.startswith("export "):
                for pair in words.removeprefix("export ").split():
                    name, _, value = pair.partition("=")
                    self.variables[name] = value
            elif program := next((each for each in _MODULES if words.startswith(each)), ""):
                self._serve(_MODULES[program], words.removeprefix(program).split())
            else:
                self._run(["bash", "-c", words])

    def _serve(self, module: list[str], options: list[str]) -> None:
        assert self.server is None, "a page has one server"
        log = self.directory / "server.log"
        variables = self.variables | _ON_ANY_PORT
        with log.open("wb") as output:
            command = [sys.executable, "-P", "-m", *module, *options]
            self.server = subprocess.Popen(command, cwd=self.directory, env=variables, stdout=output, stderr=output)
        deadline = time.monotonic() + TIMEOUT_S
        while not (ready := _READY.search(log.read_text())):
            assert self.server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        self.address, self.liftbridge = ready[1], ready[2] or LIFTBRIDGE
        while ready[2] and "door liftbridge serves" not in log.read_text():
            assert self.server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        for name, value in self.variables.items():
            self.variables[name] = self._of_this_server(value)

    def _console(self, text: str) -> str:
        shown = []
        for line in self._of_this_server(text).replace("\\\n", "").splitlines():
            if line.startswith("$ export "):
                self._type(line.removeprefix("$ "))
                shown.append(line + "\n")
            elif line.startswith("$ "):
                shown += [line + "\n", self._run(["bash", "-c", line.removeprefix("$ ")], failing=True)]
        return without_what_varies("".join(shown))

    def _run(self, command: list[str], *, failing: bool = False) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert failing or done.returncode == 0, done.stdout
        return without_what_varies(done.stdout)
