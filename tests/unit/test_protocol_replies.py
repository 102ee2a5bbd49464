"""Reply codecs: golden vectors, fixed sizes (docs/protocol/commands.md#block-sizes), the error taxonomy."""

from __future__ import annotations

import struct

import pytest
from msgspec.structs import replace

from shardd.protocol import replies, system_replies
from shardd.protocol.errors import ShardError, Status

T = 1_776_000_000_000_000
MAX64 = 2**64 - 1
STREAM = replies.StreamSummary(0, T, 0, 0, 0, "st")
TOPIC = replies.TopicSummary(0, T, 2, MAX64, 1, MAX64, 1, 0, 0, "tp")
SENT_TOPIC = replace(TOPIC, size_bytes=147, messages_count=2)
STATS = system_replies.ServerStats(
    process_id=7,
    cpu_usage=1.5,
    total_cpu_usage=2.5,
    memory_usage_bytes=3,
    total_memory_bytes=4,
    available_memory_bytes=5,
    run_time_us=6_000_000,
    start_time_us=7_000_000,
    read_bytes=8,
    written_bytes=9,
    messages_size_bytes=10,
    streams_count=11,
    topics_count=12,
    partitions_count=13,
    segments_count=14,
    messages_count=15,
    clients_count=16,
    consumer_groups_count=17,
    hostname="host",
    os_name="os",
    os_version="12",
    kernel_version="6",
    server_version="0.8.0",
    server_semver=8000,
    threads_count=18,
    free_disk_space_bytes=19,
    total_disk_space_bytes=20,
)


def partitions(*values: replies.PartitionSummary) -> bytes:
    return b"".join(value.encode() for value in values)


def golden(name: str) -> bytes:
    """The frame under test, by the name of its vector."""
    empty = [replies.PartitionSummary(number, T, 0, 0, 0, 0) for number in (0, 1)]
    sent = (replies.PartitionSummary(0, T, 1, 0, 0, 0), replies.PartitionSummary(1, T, 1, 1, 147, 2))
    node = system_replies.ClusterNode("iggy-node", "127.0.0.1", 8090, 8080, 3000, 8092)
    member = system_replies.ClientSummary(7, 0, "127.0.0.1:51234", ((0, 0, 0),))
    payloads = {
        "cluster": system_replies.ClusterMetadata("single-node", [node]).encode(),
        "stream": STREAM.encode(),
        "topic": TOPIC.encode() + partitions(*empty),
        "topic after sends": SENT_TOPIC.encode() + partitions(*sent),
        "empty poll": replies.PolledHead(1, 0, 0).encode(),
        "offset": replies.ConsumerOffset(0, 9, 4).encode(),
        "me": member.encode_details(),
    }
    return replies.frame(Status.OK, payloads[name])


VECTORS = {
    "cluster": "00000000370000000b00000073696e676c652d6e6f64650100000009000000696767792d6e6f6465090000003132372e302e30"
    "2e319a1f901fb80b9c1f0000",
    "stream": "00000000230000000000000000001f39434f06000000000000000000000000000000000000000000027374",
    "topic": "00000000850000000000000000001f39434f060002000000ffffffffffffffff01ffffffffffffffff0100000000000000000000"
    "00"
    "00000000000274700000000000001f39434f0600000000000000000000000000000000000000000000000000000000000100000000"
    "001f39434f060000000000000000000000000000000000000000000000000000000000",
    "topic after sends": "00000000850000000000000000001f39434f060002000000ffffffffffffffff01ffffffffffffffff0193000000"
    "0000000002000000000000000274700000000000001f39434f0600010000000000000000000000000000000000000000000000000000000100"
    "000000001f39434f060001000000010000000000000093000000000000000200000000000000",
    "empty poll": "000000001000000001000000000000000000000000000000",
    "offset": "00000000140000000000000009000000000000000400000000000000",
    "me": "000000002c0000000700000000000000010f0000003132372e302e302e313a353132333401000000000000000000000000000000",
}


@pytest.mark.parametrize("name", VECTORS)
def test_golden_vectors(name: str) -> None:
    assert golden(name).hex() == VECTORS[name]


def test_frames_count_the_payload_only_and_errors_carry_none() -> None:
    assert replies.frame(Status.OK).hex() == "0000000000000000"
    assert replies.frame(Status.INVALID_COMMAND).hex() == "0300000000000000"
    assert replies.frame(Status.STREAM_NAME_ALREADY_EXISTS).hex() == "f403000000000000"
    assert replies.frame(Status.OK, b"abc")[4:8] == b"\3\0\0\0"
    with pytest.raises(ValueError, match="no payload"):
        replies.frame(Status.ERROR, b"text")


def test_list_entries_of_clients_have_no_memberships() -> None:
    client = system_replies.ClientSummary(1, None, "10.0.0.1:9", ((1, 2, 3), (4, 5, 6)))
    assert client.encode().hex() == "01000000ffffffff010a00000031302e302e302e313a3902000000"
    assert client.encode_details()[len(client.encode()) :] == struct.pack("<6I", 1, 2, 3, 4, 5, 6)


def test_fixed_sizes() -> None:
    assert len(STREAM.encode()) == 33 + 2
    assert len(TOPIC.encode()) == 51 + 2
    assert len(replies.PartitionSummary(0, 0, 0, 0, 0, 0).encode()) == 40
    assert len(system_replies.ClientSummary(0, 0, "a").encode()) == 17 + 1


def test_stats_layout() -> None:
    data = STATS.encode()
    head = struct.unpack_from("<IffQQQQQQQQIIIIQII", data)
    assert head == (7, 1.5, 2.5, 3, 4, 5, 6_000_000, 7_000_000, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)
    position, texts = 108, []
    for _ in range(5):
        (size,) = struct.unpack_from("<I", data, position)
        texts.append(data[position + 4 : position + 4 + size].decode())
        position += 4 + size
    assert texts == ["host", "os", "12", "6", "0.8.0"]
    assert struct.unpack_from("<IIIQQ", data, position) == (8000, 0, 18, 19, 20)
    assert position + 28 == len(data)


def test_taxonomy() -> None:
    assert int(Status.STREAM_ID_NOT_FOUND) == 1009
    assert Status.CONSUMER_OFFSET_NOT_FOUND.http_code == "consumer_offset_not_found"
    assert Status(4101) is Status.INVALID_RESERVED_FIELD
    error = ShardError(Status.CLIENT_NOT_FOUND, close=True)
    assert (error.status, error.close, str(error)) == (100, True, "client_not_found")
