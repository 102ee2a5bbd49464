"""Changes that move files to the trash. They may have to wait for it (docs/adr/0037), so they stand apart from the
others, which never do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from shardd.metadata.commands import DeletePartitions, DeleteStream, DeleteTopic, PurgeStream, PurgeTopic
from shardd.protocol.errors import Status

DELETIONS: Final = (DeleteStream, PurgeStream, DeleteTopic, PurgeTopic, DeletePartitions)
DELETION_WAIT_S: Final = 10.0  # for its turn on a shard, and again for the trash
DELETIONS_SENT_MAX: Final = 16  # of one shard to shard 0: the places of the bus are for all changes

Gate = Callable[[int], AbstractAsyncContextManager[Status]]
"""Entered with a user id around a deletion; a status but 0 refuses it."""
