"""The native modules are built so that a memory error ends the process instead of being used."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardd.benchmark import _load
from shardd.client import _codec
from shardd.engine import _native
from shardd.spark import _decode

MODULES = [Path(str(module.__file__)) for module in (_native, _decode, _codec, _load)]


def readelf(path: Path, *options: str) -> str:
    command = ["readelf", "--wide", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name.partition(".")[0])
def test_native_modules_are_hardened(path: Path) -> None:
    dynamic, segments, symbols = (readelf(path, option) for option in ("--dynamic", "--segments", "--dyn-syms"))
    assert "BIND_NOW" in dynamic and "GNU_RELRO" in segments, "addresses can be overwritten after the start"
    (stack,) = [line for line in segments.splitlines() if "GNU_STACK" in line]
    assert "RWE" not in stack, "the stack is executable"
    assert "__stack_chk_fail" in symbols, "no stack protector"


def test_copies_of_known_size_are_checked() -> None:
    assert "_chk@GLIBC" in readelf(MODULES[0], "--dyn-syms"), "built without _FORTIFY_SOURCE"
