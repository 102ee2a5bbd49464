"""Servers whose native module was built under ASan and UBSan (`make native-asan`).

`asan/sitecustomize.py` puts that module in the place of the normal one in every process of such a server; libasan is
preloaded, because the interpreter itself is not built with it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SANITIZED_MODULE = ROOT / "native" / "build" / "asan" / "module" / "_native.abi3.so"


def sanitized_environment(reports: Path) -> dict[str, str]:
    """Variables for `Server`; reports go to files that begin with `reports`. FileNotFoundError when it is not built."""
    if not SANITIZED_MODULE.exists():
        raise FileNotFoundError(f"{SANITIZED_MODULE}: run `make native-asan`")
    preload = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "LD_PRELOAD": " ".join(preload),
        "PYTHONPATH": str(Path(__file__).parent / "asan"),
        "SHARDD_TEST_NATIVE_MODULE": str(SANITIZED_MODULE),
        "ASAN_OPTIONS": f"detect_leaks=0:quarantine_size_mb=32:malloc_context_size=8:log_path={reports}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}",
    }


def runs_sanitized(process: int) -> bool:
    """Whether a process has loaded the sanitized module and the runtime of ASan."""
    maps = Path(f"/proc/{process}/maps").read_text()
    return str(SANITIZED_MODULE) in maps and "libasan" in maps
