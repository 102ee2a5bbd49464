"""A native purge of a stream that Liftbridge clients subscribe to: the new history is read from its first message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.doors.liftbridge_server import LiftbridgeClient, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving
from tests.support.wide import crossed

NAMESPACE = "liftbridge-default"
EARLIEST, NEW_ONLY, STOP_OFFSET = 2, 0, 1
SERVER: Final = Serving(LiftbridgeServer)


@pytest.fixture
def client(server: LiftbridgeServer) -> Iterator[LiftbridgeClient]:
    with server.client() as connected:
        yield connected


def fill(tcp: wire.Wire, stream: str, first: int, count: int) -> None:
    messages = [wire.message(b"%d" % (first + number)) for number in range(count)]
    tcp.send(NAMESPACE, stream, wire.to_partition(0), messages)


def rows(found: list[Any]) -> list[tuple[int, bytes]]:
    return [(each.offset, each.value) for each in found]


@pytest.mark.parametrize(("way", "count"), crossed(["native", "liftbridge"], [80, 8]))  # more and fewer than before
def test_subscriber_over_a_native_purge_gets_all_of_the_new_history(
    server: LiftbridgeServer, client: LiftbridgeClient, count: int, way: str
) -> None:
    stream = f"purged-{way}-{count}"
    client.create(stream)
    taken = 0

    def more(number: int) -> list[tuple[int, bytes]]:
        nonlocal taken
        taken += number
        return rows(subscription.messages(taken)[taken - number :])

    with wire.connect(server.address) as tcp, client.subscribe(stream, startPosition=EARLIEST) as subscription:
        for round_ in range(2):
            begin = 1_000 * round_
            fill(tcp, stream, begin, 50)
            assert more(50) == [(each, b"%d" % (begin + each)) for each in range(50)]
            tcp.purge_topic(NAMESPACE, stream)
            if way == "native":
                fill(tcp, stream, 500, count)
            else:
                for number in range(count):
                    client.publish(stream, b"%d" % (500 + number))
            assert more(count) == [(each, b"%d" % (500 + each)) for each in range(count)]
            tcp.purge_topic(NAMESPACE, stream)


def test_subscriber_that_waits_for_new_messages_gets_the_first_after_a_purge(
    server: LiftbridgeServer, client: LiftbridgeClient
) -> None:
    client.create("waits")
    with wire.connect(server.address) as tcp:
        fill(tcp, "waits", 0, 50)
        with client.subscribe("waits", startPosition=NEW_ONLY) as subscription:
            tcp.purge_topic(NAMESPACE, "waits")
            fill(tcp, "waits", 500, 80)
            assert rows(subscription.messages(80)) == [(each, b"%d" % (500 + each)) for each in range(80)]


def test_subscription_with_a_stop_ends_at_a_purge(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("stops")
    with wire.connect(server.address) as tcp:
        fill(tcp, "stops", 0, 50)
        stop = {"stopPosition": STOP_OFFSET, "stopOffset": 60}
        with client.subscribe("stops", startPosition=EARLIEST, **stop) as subscription:
            assert len(subscription.messages(50)) == 50
            tcp.purge_topic(NAMESPACE, "stops")
            fill(tcp, "stops", 500, 80)
            assert subscription.end() == ("NOT_FOUND", "commit log was deleted")
