"""Clients in other languages than Python and Rust: whether their registries have them here."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

ASK_TIMEOUT_S: Final = 60
# How a registry is asked for the versions of a client; what answers can be installed.
ASKED: Final = {
    "Node (`apache-iggy` of the npm registry)": ("npm", "view", "apache-iggy", "version"),
    "Go (`github.com/apache/iggy/foreign/go`)": (
        "go",
        "list",
        "-m",
        "-versions",
        "github.com/apache/iggy/foreign/go",
    ),
}


def other_languages() -> list[str]:
    """One line for each: none of them is run yet, and why."""
    return [f"- {name}: {_why(command)}." for name, command in ASKED.items()]


def _why(command: tuple[str, ...]) -> str:
    if shutil.which(command[0]) is None:
        return f"not run, there is no `{command[0]}` here"
    try:
        done = subprocess.run(command, check=False, timeout=ASK_TIMEOUT_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return "not run, its registry does not answer"
    if done.returncode != 0:
        return "not run, its registry does not have it here"
    return "not run, though its registry has it"
