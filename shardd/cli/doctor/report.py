"""The findings of a check of `shardd doctor`, and the directories in which the checks look."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec


class Level(StrEnum):
    """`PROBLEM`: the server could not start."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """`finding`: the fact. `meaning`: what it means for this server, or what to do."""

    check: str
    level: Level
    finding: str
    meaning: str


class Roots(msgspec.Struct, frozen=True):
    """The kernel's file systems; the tests show others."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def read(self, path: Path) -> str | None:
        """The text without white space around it; None when there is none."""
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None


def ok(check: str, finding: str, meaning: str) -> Finding:
    return Finding(check, Level.OK, finding, meaning)


def warning(check: str, finding: str, meaning: str) -> Finding:
    return Finding(check, Level.WARNING, finding, meaning)


def problem(check: str, finding: str, meaning: str) -> Finding:
    return Finding(check, Level.PROBLEM, finding, meaning)
