"""The native modules are built by native/Makefile; this tells setuptools so. Everything else is in pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

MODULES = ("shardd.engine._native", "shardd.spark._decode", "shardd.client._codec", "shardd.benchmark._load")
NEEDS = (
    "shardd builds four native modules. That needs Linux, gcc or clang, make, pkg-config and the headers of Python, "
    "liburing (2.3 or newer), xxHash (0.8.1 or newer), lz4, zstd, zlib and OpenSSL 3. On Debian: "
    "apt-get install gcc make pkg-config python3-dev liburing-dev libxxhash-dev liblz4-dev libzstd-dev zlib1g-dev "
    "libssl-dev"
)


class BuildByMake(build_ext):
    def run(self) -> None:
        if self.inplace or self.editable_mode:
            return  # a checkout: `make native` builds them where they are imported from
        into = Path(self.build_lib).resolve()
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        jobs = f"-j{os.cpu_count() or 1}"
        command = ["make", "-C", "native", jobs, f"PYTHON={sys.executable}", f"INTO={into}", "WERROR=", "module"]
        try:
            subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parent)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"{NEEDS}\n({error})") from error


setup(
    ext_modules=[Extension(name, sources=[], py_limited_api=True) for name in MODULES],
    cmdclass={"build_ext": BuildByMake},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
