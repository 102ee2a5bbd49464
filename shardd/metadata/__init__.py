"""The metadata of the server: one ordered log of commands, written by shard 0, replicated to every worker."""

from shardd.metadata.apply import ApplyError, apply, replay
from shardd.metadata.commands import (
    Command,
    CreatePartitions,
    CreateStream,
    CreateTopic,
    CreateUser,
    DeletePartitions,
    DeleteStream,
    DeleteTopic,
    PurgeStream,
    PurgeTopic,
    Ref,
    UpdateStream,
    UpdateTopic,
)
from shardd.metadata.records import Record
from shardd.metadata.replica import MetadataReplica
from shardd.metadata.service import Metadata, Result
from shardd.metadata.state import (
    Partition,
    Permissions,
    State,
    Stream,
    StreamPermissions,
    Topic,
    TopicPermissions,
    User,
)
from shardd.metadata.validate import validate
from shardd.metadata.wal import FILE_NAME, LogError
from shardd.metadata.writer import MetadataWriter

__all__ = [
    "FILE_NAME",
    "ApplyError",
    "Command",
    "CreatePartitions",
    "CreateStream",
    "CreateTopic",
    "CreateUser",
    "DeletePartitions",
    "DeleteStream",
    "DeleteTopic",
    "LogError",
    "Metadata",
    "MetadataReplica",
    "MetadataWriter",
    "Partition",
    "Permissions",
    "PurgeStream",
    "PurgeTopic",
    "Record",
    "Ref",
    "Result",
    "State",
    "Stream",
    "StreamPermissions",
    "Topic",
    "TopicPermissions",
    "UpdateStream",
    "UpdateTopic",
    "User",
    "apply",
    "replay",
    "validate",
]
