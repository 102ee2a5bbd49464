"""The package as it is built and installed, for tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.built import alone_in

PROJECT: Final = Path(__file__).resolve().parents[2]
_FILES: Final = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_BUILD_TIMEOUT_S: Final = 600


def build(what: str, into: Path) -> Path:
    """The "wheel" or "sdist", by the build backend. Object files are those of the checkout: only links are made."""
    source = into / "source"
    source.mkdir(parents=True)
    for name in _FILES:
        shutil.copy(PROJECT / name, source)
    shutil.copytree(PROJECT / "shardd", source / "shardd", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (source / "native").symlink_to(PROJECT / "native")
    code = f"from setuptools import build_meta; print(build_meta.build_{what}({str(into)!r}))"
    with alone_in(PROJECT / "native"):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S
        )
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]
