"""Balanced sends of many connections stay on their shard, and every partition still gets its share (docs/adr/0098)."""

from __future__ import annotations

import contextlib

from tests.conftest import MakeServer
from tests.support import wire
from tests.support.stalls import figures_of, metrics
from tests.support.wire import Wire

TWO_SHARDS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
PARTITIONS = 12
OWED_MAX = 64  # native/src/core/turns.h: TURNS_OWED_MAX
CONNECTIONS = 12
ROUNDS = 250
AT_ONCE = 4  # requests that a connection sends before it reads answers


def counts(connection: Wire) -> list[int]:
    return [each.messages_count for each in connection.partitions("s", "t")]


def figure(connection: Wire, name: str) -> int:
    return sum(int(each[name]) for each in figures_of(metrics(connection)))


def test_a_crowd_of_balanced_producers_is_not_forwarded_and_fills_all_partitions(make_server: MakeServer) -> None:
    server = make_server(TWO_SHARDS)
    frame = wire.frame(wire.SEND_MESSAGES, wire.batch("s", "t", wire.balanced(), [wire.message(b"x")]))
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(wire.connect(server.address)) for _ in range(CONNECTIONS)]
        crowd[0].create_topic(crowd[0].create_stream("s"), "t", PARTITIONS)
        for _ in range(ROUNDS):
            for each in crowd:
                each.send_bytes(frame * AT_ONCE)
            for each in crowd:
                assert [each.reply() for _ in range(AT_ONCE)] == [(0, b"")] * AT_ONCE
        sent = CONNECTIONS * ROUNDS * AT_ONCE
        found = counts(crowd[0])
        exchanged, forwarded = figure(crowd[0], "engine.turns_exchanged"), figure(crowd[0], "engine.forwarded")
    assert sum(found) == sent
    assert max(found) - min(found) <= 2 * OWED_MAX + 4, found
    assert exchanged > 0
    assert forwarded < sent / 2, (forwarded, exchanged, sent)


def test_who_sends_alone_gets_the_partitions_in_turn(make_server: MakeServer) -> None:
    server = make_server(TWO_SHARDS)
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", PARTITIONS)
        for number in range(10 * PARTITIONS):
            before = counts(connection)
            connection.send("s", "t", wire.balanced(), [wire.message(b"x")])
            after = counts(connection)
            grown = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            assert grown == [number % PARTITIONS]
