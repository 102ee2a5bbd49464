"""Streams, topics and groups of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shardd.benchmark.options import BenchError, Options
from shardd.client.sync import SyncClient
from shardd.client.wire import NEVER

TOPIC: Final = "topic-1"
_NO_COMPRESSION: Final = 1


@dataclass
class Places:
    """Ids at the server by the numbers of the plan."""

    streams: dict[int, int] = field(default_factory=dict)
    topics: dict[int, int] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)


def stream_name(number: int) -> str:
    return f"bench-stream-{number}"


def prepare(client: SyncClient, options: Options) -> Places:
    """Makes what is to be written; looks for what is to be read. ClientError, BenchError."""
    places = Places()
    existing = {stream.name: stream.id for stream in client.streams()}
    for number in range(1, options.streams + 1):
        name = stream_name(number)
        if name in existing and options.kind.sends and not options.reuse_streams:
            client.delete_stream(name)
            del existing[name]
        if name not in existing:
            if options.kind.needs_data:
                raise BenchError(f"there is no stream {name}: run a kind that sends first")
            _make(client, options, name)
        found = client.topic(name, TOPIC)
        stream = client.stream(name)
        if found is None or stream is None:
            raise BenchError(f"stream {name} has no topic {TOPIC}")
        places.streams[number], places.topics[number] = stream[0].id, found.id
    for number in range(1, options.groups + 1 if options.kind.groups is not None else 1):
        places.groups[number] = _make_group(client, stream_name(1 + (number - 1) % options.streams), f"cg-{number}")
    return places


def _make(client: SyncClient, options: Options, name: str) -> None:
    client.create_stream(name)
    client.create_topic(
        name,
        TOPIC,
        options.partitions,
        compression=_NO_COMPRESSION,
        expiry_us=NEVER if options.expiry_us is None else options.expiry_us,
        max_bytes=NEVER if options.max_topic_size_bytes is None else options.max_topic_size_bytes,
    )


def _make_group(client: SyncClient, stream: str, name: str) -> int:
    """A new one: what an earlier run has read is to be read again."""
    if client.group(stream, TOPIC, name) is not None:
        client.delete_group(stream, TOPIC, name)
    return client.create_group(stream, TOPIC, name).id
