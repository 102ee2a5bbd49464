"""Where `shardd` starts: before anything of size is imported."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from shardd.cli.standard import carried_out

_IN_NO_HURRY: Final = (["backup", "create"], ["backup", "verify"])
COMPLETE: Final = "_SHARDD_COMPLETE"  # the variable in which a shell asks what may stand here
# New objects before the next look for garbage: nothing that is imported is any, and Python looks every 700 objects.
_LOOKED_AT_ONCE: Final = 10_000


def main() -> None:
    gc.set_threshold(_LOOKED_AT_ONCE, *gc.get_threshold()[1:])
    carried_out(_with_its_priority, says=COMPLETE not in os.environ)


def _with_its_priority() -> None:
    if sys.argv[1:3] in _IN_NO_HURRY:
        from shardd.backup.priority import FULL_SPEED, giving_way

        if FULL_SPEED not in sys.argv:
            with giving_way():
                _run()
            return
    _run()


def _run() -> None:
    from shardd.cli.direct import direct

    command = None if COMPLETE in os.environ else direct(sys.argv[1:])
    if command is not None:
        command()
        return
    from shardd.cli.main import main as run

    run()
