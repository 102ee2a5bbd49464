"""The first user (iggy-server 2.5): id 0, every global permission, made once by shard 0."""

from __future__ import annotations

from shardd.metadata.commands import CreateUser
from shardd.metadata.state import Permissions
from shardd.metadata.writer import MetadataWriter
from shardd.protocol.errors import ShardError, Status
from shardd.security.passwords import Passwords
from shardd.security.permissions import ROOT_USER_ID

ROOT_PERMISSIONS = Permissions(
    manage_servers=True,
    read_servers=True,
    manage_users=True,
    read_users=True,
    manage_streams=True,
    read_streams=True,
    manage_topics=True,
    read_topics=True,
    poll_messages=True,
    send_messages=True,
)


async def ensure_root(writer: MetadataWriter, passwords: Passwords, name: str, password: str) -> bool:
    """Creates the root user when there is no user at all; True when it was created.

    Raises ShardError when the log does not take it.
    """
    if writer.state.users:
        return False
    command = CreateUser(name, await passwords.hash(password), True, ROOT_PERMISSIONS)
    result = await writer.bootstrap(ROOT_USER_ID, command)
    if result.status != Status.OK:
        raise ShardError(Status(result.status), "the root user cannot be created")
    return True
