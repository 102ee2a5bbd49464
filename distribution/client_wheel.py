"""The distribution `shardd-client`, as `make client-wheel` makes it: `shardd.client` alone, without a dependency.

The distribution `shardd` has the same files: one of the two is installed, not both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
OF_THE_SERVER: Final = {"connection.py"}  # stands on the server's codecs
SETTINGS: Final = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "shardd-client"
version = "{version}"
description = "Client of shardd, a persistent message streaming server"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
[tool.setuptools]
packages = ["shardd", "shardd.client"]
[tool.setuptools.package-data]
shardd = ["py.typed"]
"""


def stage(into: Path) -> None:
    """What the distribution is made of."""
    package = into / "shardd"
    (package / "client").mkdir(parents=True)
    for name in ("__init__.py", "py.typed"):
        shutil.copy(PROJECT / "shardd" / name, package)
    for module in (PROJECT / "shardd/client").glob("*.py"):
        if module.name not in OF_THE_SERVER:
            shutil.copy(module, package / "client")
    shutil.copy(PROJECT / "LICENSE", into)
    found = re.search(r'__version__: Final = "(.+)"', (package / "__init__.py").read_text())
    assert found is not None, "shardd/__init__.py has no version"
    (into / "pyproject.toml").write_text(SETTINGS.format(version=found[1]))


def main() -> None:
    """Into dist/, or where the argument says."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else PROJECT / "dist").resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        stage(Path(temporary))
        code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(target)!r}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=temporary, check=True, capture_output=True, text=True)
    print(target / done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
