"""Where the process of a door starts: `python -m shardd.doors.start <module> <descriptor>`, before anything of size is
imported. The module has a coroutine `serve` (process.py)."""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def main() -> None:
    gc.disable()  # until it is ready: nothing that is imported is garbage, and looking at it is a tenth of the start
    module = import_module(sys.argv[1])
    from shardd.doors.process import run_door

    run_door(module.serve)


if __name__ == "__main__":
    main()
