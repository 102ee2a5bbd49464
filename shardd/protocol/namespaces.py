"""The namespace of a partition: its three ids in one number (docs/protocol/records.md#placement)."""

from __future__ import annotations

from shardd.protocol.limits import PARTITION_ID_BITS, STREAM_ID_BITS, TOPIC_ID_BITS

_STREAM_AT = TOPIC_ID_BITS + PARTITION_ID_BITS
_TOPIC_MASK = (1 << TOPIC_ID_BITS) - 1
_PARTITION_MASK = (1 << PARTITION_ID_BITS) - 1


def namespace(stream: int, topic: int, partition: int) -> int:
    """ValueError when an id does not fit its bits."""
    if stream >> STREAM_ID_BITS or topic >> TOPIC_ID_BITS or partition >> PARTITION_ID_BITS:
        raise ValueError("id does not fit the namespace")
    return stream << _STREAM_AT | topic << PARTITION_ID_BITS | partition


def partition_ids(namespace: int) -> tuple[int, int, int]:
    """Stream, topic, partition."""
    return namespace >> _STREAM_AT, namespace >> PARTITION_ID_BITS & _TOPIC_MASK, namespace & _PARTITION_MASK


def partition_text(namespace: int) -> str:
    """ "stream/topic/partition" of a namespace."""
    return "/".join(map(str, partition_ids(namespace)))
