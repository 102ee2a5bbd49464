"""Transcripts of commands: `$ shardd ...`, lines of its input (`< `), what it prints, and its status when it is not 0.

`python -m tests.cli.transcript` writes what the commands print now; read the difference before it is committed.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from shardd.cli.direct import direct
from shardd.cli.main import app

PROJECT: Final = Path(__file__).parents[2]
DIRECTORY: Final = Path(__file__).parent / "transcripts"
_VOLATILE: Final = (
    (re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "TIME"),
    (re.compile(r"\b1\d{15}\b"), "MICROSECONDS"),
    (re.compile(r"127\.0\.0\.1:\d{4,5}\b"), "ADDRESS"),
    (re.compile(r'(?<="incarnation":)\d+'), "N"),
    (re.compile(r"^[\w+/=-]{40,}$", re.MULTILINE), "SECRET"),
    (re.compile(r'(?<="id":)\d{6,}'), "N"),
    (re.compile(r"\d+\.\d(?= ms$)", re.MULTILINE), "N"),
    (re.compile(r"^((?:free|total) disk|(?:total |available )?memory|read|written) +[\d.]+ \w+$", re.M), r"\1  SIZE"),
    (re.compile(r"^((?:total )?cpu percent|process id|run time|threads) +[\d.]+( s)?$", re.M), r"\1  N\2"),
    (re.compile(r"^(hostname|os name|os version|kernel version) .*$", re.M), r"\1  NAME"),
    (re.compile(r" +\d+\.\d$", re.MULTILINE), "  SECONDS"),
    (re.compile(r"(?<=-shop_orders-)[0-9a-f]{12}"), "HASH"),  # of where the server is, too
    (re.compile(r'(?<="seconds":)\d+\.\d'), "N"),
)


def without_what_varies(shown: str) -> str:
    for pattern, name in _VOLATILE:
        shown = pattern.sub(name, shown)
    return shown


def invoked(words: list[str], typed: str, variables: Mapping[str, str | None], by_typer: bool) -> tuple[str, int]:
    """What is printed, and the exit status."""
    runner = CliRunner()
    with runner.isolation(input=typed, env=variables) as (_, _, output):
        status = 0
        try:
            command = None if by_typer else direct(words)
            if command is None:
                app(words, prog_name="shardd")
            else:
                command()
        except SystemExit as ended:
            status = int(ended.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        return output.getvalue().decode(), status


class Shell:
    """Runs commands in this process against one server; `home`: where contexts are saved.
    `by_typer`: also what could be run without it."""

    def __init__(self, address: str, home: Path, *, by_typer: bool = False) -> None:
        self.address, self.home, self.by_typer = address, home, by_typer

    def run(self, line: str, typed: str = "") -> str:
        """What is printed, with the status, without what differs from run to run."""
        line = line.replace("ADDRESS", self.address).replace("HOME", str(self.home)).replace("PROJECT", str(PROJECT))
        variables: dict[str, str | None] = {"SHARDD_URL": f"shardd://iggy:iggy@{self.address}", "HOME": str(self.home)}
        words = shlex.split(line)
        while words and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        unset = {"SHARDD_CONTEXT": None, "SHARDD_TOKEN": None, "XDG_CONFIG_HOME": None, "SHARDD_PASSWORD": None}
        output, status = invoked(words[1:], typed, unset | variables, self.by_typer)
        shown = output.replace(str(self.home), "HOME").replace(str(PROJECT), "PROJECT")
        if self.address in shown:
            shown = re.sub(" {3,}", "  ", shown)  # columns are as wide as the port
        shown = without_what_varies(shown)
        ended = "" if shown.endswith("\n") or not shown else "\n"
        return shown + ended + (f"[{status}]\n" if status else "")


def replay(text: str, shell: Shell) -> str:
    """The transcript as it is now."""
    lines, at = text.splitlines(), 0
    found: list[str] = []
    while at < len(lines):
        if lines[at].startswith("#") or not lines[at]:
            if not found or lines[at].startswith("#") or found[-1] != "\n":
                found.append(lines[at] + "\n")
        elif lines[at].startswith("$ "):
            command, typed = lines[at][2:], []
            while at + 1 < len(lines) and lines[at + 1].startswith("< "):
                at += 1
                typed.append(lines[at][2:] + "\n")
            found += [f"$ {command}\n", *(f"< {each}" for each in typed), shell.run(command, "".join(typed))]
        at += 1
    return "".join(found)


def main() -> None:
    from shardd.testing import server

    for path in sorted(DIRECTORY.glob(f"{sys.argv[1] if len(sys.argv) > 1 else '*'}.txt")):
        with server() as running, tempfile.TemporaryDirectory() as home:
            path.write_text(replay(path.read_text(), Shell(running.address, Path(home))))


if __name__ == "__main__":
    main()
