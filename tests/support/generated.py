"""How many examples Hypothesis generates."""

from __future__ import annotations

import os
from typing import Final

_TIMES: Final = int(os.environ.get("EXAMPLES_TIMES", "1"))


def examples(count: int) -> int:
    """`count` in `make test`; `make examples` generates 20 times as many."""
    return count * _TIMES
