"""What the Python processes that Spark starts and keeps have in common (`pyspark.daemon`)."""

from __future__ import annotations

import gc
import os
from typing import Final

_KEPT: Final = "SPARK_REUSE_WORKER"  # Spark sets it for processes that serve one task after the other
_settled = False


def settle() -> None:
    """Spark collects garbage behind every task and every question of the planner: 25 ms and more, nearly all of it for
    modules, which never go. They are left out from the first call on. Nothing happens in any other process."""
    global _settled
    if not _settled and os.environ.get(_KEPT):
        _settled = True
        gc.freeze()
