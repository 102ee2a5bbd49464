"""The program of tests/compat/rust: built on the released crate, in the cache of environments of clients."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.venvs import VENVS

VERSION: Final = "0.11.0"
CLIENT: Final = f"Rust iggy {VERSION}"
SOURCES: Final = Path(__file__).parent / "rust"
BUILD_TIMEOUT_S: Final = 1800  # 390 crates, once


def command_of(role: str, client: str, program: str, arguments: Sequence[str]) -> list[str]:
    """How a client is run: `role` session (what it creates, then what it reads) or member."""
    if client == CLIENT:
        return [program, role, *arguments]
    script = "client_earlier.py" if role == "session" else "client_member.py"
    return [program, str(Path(__file__).parent / script), *arguments]


def rust_client() -> str:
    """The program. LookupError: why there is none."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise LookupError("there is no `cargo` here")
    target = VENVS / "rust"
    target.mkdir(parents=True, exist_ok=True)
    command = [cargo, "build", "--quiet", "--locked", "--manifest-path", str(SOURCES / "Cargo.toml")]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    try:
        done = subprocess.run(
            command, check=False, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as problem:
        raise LookupError(f"it is not built after {BUILD_TIMEOUT_S} s") from problem
    if done.returncode != 0:
        raise LookupError(f"cargo does not build it: {(done.stderr.strip().splitlines() or ['no reason'])[-1][:100]}")
    return str(target / "debug" / "shardd-compat")
