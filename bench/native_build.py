"""Builds the measuring programs of bench/native."""

from __future__ import annotations

from pathlib import Path

from tests.support.built import make

NATIVE = Path(__file__).parent / "native"


def build(program: str) -> Path:
    """Path of an up-to-date `program` (a name of PROGRAMS in its Makefile). RuntimeError: the compiler's words."""
    done = make(NATIVE, f"build/{program}")
    if done.returncode != 0:
        raise RuntimeError(f"cannot build {program}:\n{done.stderr}")
    return NATIVE / "build" / program
