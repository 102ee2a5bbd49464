"""Builds the measuring programs of bench/native."""

from __future__ import annotations

import subprocess
from pathlib import Path

NATIVE = Path(__file__).parent / "native"


def build(program: str) -> Path:
    """Path of an up-to-date `program` (a name of PROGRAMS in its Makefile). RuntimeError: the compiler's words."""
    done = subprocess.run(
        ["make", "--silent", "-C", str(NATIVE), f"build/{program}"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"cannot build {program}:\n{done.stderr}")
    return NATIVE / "build" / program
