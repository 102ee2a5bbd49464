"""Histories of the metadata as the records that its log holds."""

from __future__ import annotations

from collections.abc import Iterable

from shardd.metadata import commands
from shardd.metadata.records import Record, encode_record


def chain(history: Iterable[commands.Command]) -> list[tuple[bytes, Record]]:
    """A record for each command from index 1 on, each with the digest of the one before."""
    encoded: list[tuple[bytes, Record]] = []
    for number, command in enumerate(history, 1):
        previous = encoded[-1][1].digest if encoded else bytes(32)
        encoded.append(encode_record(previous, number, 1_000 + number, number, 0, command))
    return encoded
