"""The distribution `shardd-client`, as `make client-wheel` makes it: `shardd.client` alone, without a dependency.

    client_wheel.py [DIRECTORY [WHEEL]]

One wheel for any Python and machine. With the WHEEL of the server (`make wheel`) also one for its platform that has the
native codec out of it: pip takes that one where it fits. The distribution `shardd` has the same files: one of the two
is installed, not both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
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
"shardd.client" = ["*.so", "*.pyi"]
"""
CODEC: Final = "shardd/client/_codec.abi3.so"
OF_A_PLATFORM: Final = """from setuptools import Distribution, setup
class Native(Distribution):
    def has_ext_modules(self):
        return True
setup(distclass=Native)
"""


def stage(into: Path) -> None:
    """What the distribution is made of."""
    package = into / "shardd"
    (package / "client").mkdir(parents=True)
    for name in ("__init__.py", "py.typed"):
        shutil.copy(PROJECT / "shardd" / name, package)
    for module in (PROJECT / "shardd/client").glob("*.py"):
        shutil.copy(module, package / "client")
    shutil.copy(PROJECT / "LICENSE", into)
    found = re.search(r'__version__: Final = "(.+)"', (package / "__init__.py").read_text())
    assert found is not None, "shardd/__init__.py has no version"
    (into / "pyproject.toml").write_text(SETTINGS.format(version=found[1]))


def add_codec(staged: Path, wheel: Path) -> None:
    """The native codec out of the server's wheel, and the tags of that wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(CODEC, staged)
    python, _abi, platform = wheel.stem.split("-")[-3:]
    (staged / "setup.py").write_text(OF_A_PLATFORM)
    (staged / "setup.cfg").write_text(f"[bdist_wheel]\npy_limited_api = {python}\nplat_name = {platform}\n")


def build(target: Path, of_the_server: Path | None) -> Path:
    """The wheel, in `target`."""
    with tempfile.TemporaryDirectory() as temporary:
        stage(Path(temporary))
        if of_the_server is not None:
            add_codec(Path(temporary), of_the_server)
        code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(target)!r}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=temporary, check=True, capture_output=True, text=True)
    return target / done.stdout.splitlines()[-1]


def main() -> None:
    """Into dist/, or where the argument says."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else PROJECT / "dist").resolve()
    target.mkdir(parents=True, exist_ok=True)
    print(build(target, None))
    for wheel in sys.argv[2:3]:
        print(build(target, Path(wheel).resolve()))


if __name__ == "__main__":
    main()
