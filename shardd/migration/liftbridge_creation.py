"""The record that creates an imported stream."""

from __future__ import annotations

from shardd.metadata.commands import CreateTopic, Ref
from shardd.protocol.limits import UNLIMITED


def creation_of(namespace: Ref, name: str, subject: str, partitions: int) -> CreateTopic:
    """Nothing expires: what the settings of the stream were nobody has told, and what was kept there is kept."""
    return CreateTopic(namespace, name, partitions, 1, UNLIMITED, UNLIMITED, 1)
