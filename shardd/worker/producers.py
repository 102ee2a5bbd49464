"""What the engine of a worker knows of producers whose batches are stored once (docs/adr/0073-idempotent-producers.md).

<data>/producers.boot, integers little-endian, written by shard 0 before any shard knows the metadata:

    offset size
    0      8    magic "SHRDBOOT"
    8      8    barrier: the last record of the metadata when the server first started in this boot of the machine
    16     16   id of that boot
    32     8    XXH3-64 of bytes 0 to 32

A partition without a file of producers may have lost it with the power: producers that began up to the barrier are
strangers there.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import xxhash

from shardd.engine import Engine
from shardd.log import layout
from shardd.metadata import Metadata, commands
from shardd.metadata.records import Record
from shardd.metadata.state import State
from shardd.runtime.boot import boot_id
from shardd.runtime.regular_files import read_regular

FILE_NAME: Final = "producers.boot"
_MAGIC: Final = b"SHRDBOOT"
_FIELDS: Final = struct.Struct("<8sQ16s")
_CHECKSUM: Final = struct.Struct("<Q")


def this_boot() -> bytes:
    """16 bytes; random ones where nobody tells: then nothing that was written before is believed."""
    return boot_id() or os.urandom(16)


def begin_boot(data: Path, index: int) -> None:
    """Of the data directory, whose metadata end with the record `index`. Blocks. OSError."""
    boot = this_boot()
    if _read(data, boot) is None:
        body = _FIELDS.pack(_MAGIC, index, boot)
        layout.write_durably(data / FILE_NAME, body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)))


def _read(data: Path, boot: bytes) -> int | None:
    """The barrier, when the file is of this boot."""
    try:
        found = read_regular(data / FILE_NAME)
    except (OSError, ValueError):
        return None
    body = found[: _FIELDS.size]
    if len(body) < _FIELDS.size or found[_FIELDS.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
        return None
    magic, index, written_in = _FIELDS.unpack(body)
    return int(index) if magic == _MAGIC and written_in == boot else None


class KnownProducers:
    """Lives on the loop thread of its worker."""

    def __init__(self, engine: Engine, data: Path) -> None:
        self._engine = engine
        self._data = data

    def follow(self, metadata: Metadata) -> None:
        """From now on; before partitions are opened."""
        state, boot = metadata.state, this_boot()
        barrier = _read(self._data, boot)
        self._engine.producers_begin(boot, state.index if barrier is None else barrier, state.index)
        for number in state.producer_owners:
            self._put(state, number)
        metadata.subscribe(self._applied)

    def _applied(self, old: State, new: State, record: Record) -> None:
        if isinstance(record.command, commands.InitProducer):
            self._put(new, record.command.producer or record.index)
        elif old.producer_owners is not new.producer_owners:
            for number in old.producer_owners:
                if number not in new.producer_owners:
                    self._engine.producer_drop(number)

    def _put(self, state: State, number: int) -> None:
        user_id = state.producer_owners[number]
        known = state.users[user_id].producers[number]
        self._engine.producer_put(number, user_id, known.epoch, known.begun)
