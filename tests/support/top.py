"""The figures of each shard of a running server, as `shardd top --json` has them.

They are asked for on a connection: tests wait for figures in loops, and a process of `shardd top` costs 0.4 s of CPU.
"""

from __future__ import annotations

from tests.support import wire
from tests.support.stalls import figures_of, metrics


def shard_figures(address: str) -> list[dict[str, int]]:
    """All figures of each shard, by shard. `address`: host and port, or `unix:` and a path."""
    with wire.connect(address.removeprefix("unix:")) as root:
        answer = metrics(root)
    by_shard = sorted(zip(answer.shards, figures_of(answer), strict=True), key=lambda each: each[0].shard)
    return [figures for _, figures in by_shard]
