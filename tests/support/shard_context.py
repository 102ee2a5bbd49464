"""What the services of a shard get that has neither an engine of its own nor logins."""

from __future__ import annotations

from typing import Any, cast

from shardd.config import Settings
from shardd.metadata import Metadata
from shardd.runtime.threads import Threads
from shardd.service.context import ShardContext
from shardd.service.sessions import SessionTable


def shard_context(
    shard: int, shards: int, *, engine: object, metadata: Metadata, bus: object, settings: Settings, threads: Threads
) -> ShardContext:
    """`engine` and `bus` have the parts that the services under test use."""
    nothing = cast(Any, None)
    return ShardContext(
        shard=shard,
        shards=shards,
        engine=cast(Any, engine),
        metadata=metadata,
        bus=cast(Any, bus),
        settings=settings,
        sessions=SessionTable(),
        passwords=nothing,
        login_turns=nothing,
        threads=threads,
        started_at_us=0,
        tcp_address=("127.0.0.1", 0),
    )
