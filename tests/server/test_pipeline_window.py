"""The setting `tcp.pipeline_window_requests` where it acts: what sends ahead shares a sync, or does not."""

from __future__ import annotations

import pytest

from tests.conftest import MakeServer
from tests.support import wire
from tests.support.server import ONE_SHARD
from tests.support.stalls import figures_of, metrics

REQUESTS = 30


def syncs_of_a_pipeline(make_server: MakeServer, window: int) -> int:
    settings = {"SHARDD_SYSTEM_PARTITION_ACK": "durable", "SHARDD_TCP_PIPELINE_WINDOW_REQUESTS": str(window)}
    server = make_server(ONE_SHARD | settings)
    with wire.connect(server.address) as connection:
        topic = connection.create_topic(connection.create_stream("s"), "t", 1)
        send = wire.frame(wire.SEND_MESSAGES, wire.batch("s", topic, wire.to_partition(0), [wire.message(b"x")]))
        connection.send_bytes(send)  # brings the route
        assert connection.reply() == (0, b"")
        before = figures_of(metrics(connection))[0]
        connection.send_bytes(send * REQUESTS)
        assert [connection.reply() for _ in range(REQUESTS)] == [(0, b"")] * REQUESTS
        after = figures_of(metrics(connection))[0]
        return after["engine.syncs"] - before["engine.syncs"]


@pytest.mark.parametrize(("window", "shared"), [(1, False), (32, True)])
def test_what_sends_ahead_shares_syncs_unless_the_window_is_one(
    make_server: MakeServer, window: int, shared: bool
) -> None:
    syncs = syncs_of_a_pipeline(make_server, window)
    assert (syncs < REQUESTS / 2) is shared, f"{syncs} syncs"
