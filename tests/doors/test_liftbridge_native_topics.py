"""Topics that were made in other ways as streams of Liftbridge, and the end of a server in order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.doors.liftbridge_server import LiftbridgeServer
from tests.support import wire


@pytest.mark.parametrize("exposed", ["off", "read", "readwrite"])
def test_native_topics_are_streams_as_the_setting_says(tmp_path: Path, exposed: str) -> None:
    server = LiftbridgeServer(tmp_path / "data", {"SHARDD_LIFTBRIDGE_EXPOSE_NATIVE": exposed})
    with server, wire.connect(server.address) as tcp, server.client() as client:
        tcp.create_topic(tcp.create_stream("shop"), "orders", 2)
        tcp.send("shop", "orders", wire.to_partition(1), [wire.message(b"native")])
        if exposed == "off":
            assert {each.name for each in client.call("FetchMetadata").streamMetadata} == {"__cursors"}
            assert client.status("Publish", stream="shop/orders")[0] == "NOT_FOUND"
            return
        [stream] = client.call("FetchMetadata", streams=["shop/orders"]).streamMetadata
        assert (stream.error, stream.subject, len(stream.partitions)) == (0, "shop.orders", 2)
        assert [each.value for each in client.read("shop/orders", 1, 1)] == [b"native"]
        published = client.status("Publish", stream="shop/orders", partition=1, value=b"by liftbridge")
        if exposed == "read":
            assert published[0] == "PERMISSION_DENIED"
            return
        assert published == ("OK", "")
        polled = tcp.poll("shop", "orders", 1, count=10)
        assert [each.payload for each in polled.messages] == [b"native", b"by liftbridge"]
        tcp.delete_stream("shop")
        deadline = time.monotonic() + 30
        while client.status("Publish", stream="shop/orders")[0] != "NOT_FOUND":
            assert time.monotonic() < deadline


def test_messages_of_a_stream_whose_name_a_native_topic_gets_keep_their_place(tmp_path: Path) -> None:
    server = LiftbridgeServer(tmp_path / "data", {"SHARDD_LIFTBRIDGE_EXPOSE_NATIVE": "readwrite"})
    with server, wire.connect(server.address) as tcp, server.client() as client:
        client.create("shop/orders")
        assert client.status("Publish", stream="shop/orders", value=b"1") == ("OK", "")
        shop = tcp.create_stream("shop")
        tcp.create_topic(shop, "orders", 1)
        tcp.create_topic(shop, "seen", 1)
        deadline = time.monotonic() + 60
        while client.status("Publish", stream="shop/seen", value=b"x")[0] == "NOT_FOUND":  # the door knows both then
            assert time.monotonic() < deadline
        assert client.status("Publish", stream="shop/orders", value=b"2") == ("OK", "")
        assert not tcp.poll("shop", "orders", 0, count=10).messages
        assert [each.value for each in client.read("shop/orders", 2)] == [b"1", b"2"]


def test_a_server_with_subscriptions_ends_in_order(tmp_path: Path) -> None:
    server = LiftbridgeServer(tmp_path / "data")
    server.start()
    with server.client() as client:
        client.create("s")
        with client.subscribe("s", startPosition=2) as subscription:
            client.publish("s", b"x")
            assert len(subscription.messages(1)) == 1
            assert server.stop() == 0
            assert subscription.end()[0] in ("UNAVAILABLE", "CANCELLED")
    assert "Traceback" not in server.log()
    assert "killed" not in server.log()
