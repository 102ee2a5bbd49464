"""What two data directories have in common when one was restored from a backup of the other: all but the history."""

from __future__ import annotations

from pathlib import Path

from immutables import Map
from msgspec.structs import replace

from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import DamagedManifestError, decode_manifest, encode_manifest
from shardd.log.offsets_table import decode_table
from shardd.metadata import FILE_NAME
from shardd.metadata.load import load_state
from shardd.metadata.snapshot import SNAPSHOT_NAME
from shardd.metadata.state import State


def without_history(root: Path) -> dict[str, object]:
    """Files by name; index, digest and incarnations are those of nobody."""
    found: dict[str, object] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_dir() or name.startswith(layout.TRASH) or name in (FILE_NAME, SNAPSHOT_NAME):
            continue
        if path.name == layout.INCARNATION:
            assert read_incarnation(path.parent)
            found[name] = b""
        elif path.suffix == ".manifest":
            found[name] = _manifest(path.read_bytes())
        elif path.name == layout.CONSUMER_OFFSETS:
            found[name] = sorted(decode_table(path.read_bytes(), None).offsets)
        else:
            found[name] = path.read_bytes()
    return found | {"state": _state(load_state(root / FILE_NAME))}


def _manifest(content: bytes) -> bytes:
    try:
        return encode_manifest(replace(decode_manifest(content), incarnation=0))
    except DamagedManifestError:
        return content


def _state(state: State) -> State:
    streams = {}
    for stream in state.streams.values():
        topics = {
            topic.id: replace(topic, partitions=tuple(replace(each, incarnation=0) for each in topic.partitions))
            for topic in stream.topics.values()
        }
        streams[stream.id] = replace(stream, topics=Map(topics))
    return replace(state, index=0, digest=bytes(32), streams=Map(streams))


def incarnation_in(root: Path) -> int:
    """Of every partition of a restored directory."""
    state = load_state(root / FILE_NAME)
    [found] = {
        partition.incarnation
        for stream in state.streams.values()
        for topic in stream.topics.values()
        for partition in topic.partitions
    }
    return found
