"""Everything that python-liftbridge can do, in an environment of its own: with HOST:PORT it prints one JSON object. It
hands its user the empty message that begins each subscription."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from itertools import islice
from typing import Any

from python_liftbridge import ErrNoSuchStream, ErrStreamExists, Lift, Message, Stream


def read(client: Lift, stream: Stream, count: int) -> list[list[Any]]:
    found = islice(client.subscribe(stream), count + 1)
    return [[each.offset, each.value.decode(), each.key.decode()] for each in found]


def refused(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def session(address: str) -> dict[str, Any]:
    client = Lift(address)
    stream = Stream(subject="py.subject", name="py-stream", group="py")
    client.create_stream(stream)
    seen: dict[str, Any] = {"again": refused(lambda: client.create_stream(stream))}
    assert ErrStreamExists and ErrNoSuchStream
    for number in range(5):
        client.publish(Message(value=f"v{number}", stream="py-stream", key="k"))
    client.publish(Message(value="leader", stream="py-stream").ack_policy_leader())
    client.publish(Message(value="all", stream="py-stream", ack_inbox="in", correlation_id="c").ack_policy_all())
    client.publish_to_subject(Message(value="subject", subject="py.subject"))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # what goes to a subject is stored by whoever listens, later
        if read(client, Stream("", "py-stream").start_at_latest_received(), 1)[1][0] == 7:
            break
    seen["earliest"] = read(client, Stream("", "py-stream").start_at_earliest_received(), 8)
    seen["offset"] = read(client, Stream("", "py-stream").start_at_offset(6), 2)
    seen["latest"] = read(client, Stream("", "py-stream").start_at_latest_received(), 1)
    hour = timedelta(hours=1)
    seen["hour"] = len(read(client, Stream("", "py-stream").start_at_time_delta(hour), 8))
    seen["nowhere"] = refused(lambda: read(client, Stream("", "nowhere").start_at_earliest_received(), 1))
    seen["publish_nowhere"] = refused(lambda: client.publish(Message(value="x", stream="nowhere")))
    found = client.fetch_metadata()
    seen["streams"] = sorted(each.name for each in found.metadata if not each.name.startswith("__"))
    seen["brokers"] = [f"{each.host}:{each.port}" for each in found.brokers]
    most = Stream(subject="most", name="most", max_replication=True)
    client.create_stream(most)
    seen["wrong_subject"] = refused(lambda: client.create_stream(Stream(subject="two words", name="wrong")))
    client.close()
    return seen


print(json.dumps(session(sys.argv[1])))
