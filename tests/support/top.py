"""What `shardd top` says of a running server."""

from __future__ import annotations

import json
import subprocess
import sys

TIMEOUT_S = 60.0


def shard_figures(address: str) -> list[dict[str, int]]:
    """All figures of each shard."""
    words = [sys.executable, "-m", "shardd", "top", "--once", "--interval", "0.1", "--json", "--address", address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return [row["figures"] for row in json.loads(done.stdout)["shards"]]
