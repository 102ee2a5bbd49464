"""Where `shardd` starts: before anything of size is imported."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Final

from shardd.backup.priority import FULL_SPEED, giving_way

_IN_NO_HURRY: Final = (["backup", "create"], ["backup", "verify"])


def main() -> None:
    in_no_hurry = sys.argv[1:3] in _IN_NO_HURRY and FULL_SPEED not in sys.argv
    with giving_way() if in_no_hurry else nullcontext():
        from shardd.cli.main import main as run

        run()
