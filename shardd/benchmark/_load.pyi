from typing import Any, NoReturn

def run(
    slots: Any, plans: bytes, payload: bytes, warmup_ns: int, parent: int, /
) -> tuple[list[bytes], int, int, int, int]:
    """Runs actors (native/load/load.h) to their ends: their records; of the measurement CPU and wall time, and how long
    it waited for a CPU, in nanoseconds; empty polls. RuntimeError with a sentence."""

def floor(listener: int, directory: str, cpus: bytes, sync: bool, /) -> NoReturn:
    """Serves as the floor (native/load/floor.h) until the process is ended. `cpus`: an int for each thread, -1: not
    pinned."""
