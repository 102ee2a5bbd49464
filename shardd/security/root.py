"""The first user (docs/protocol/accounts.md#first-user): id 0, every global permission, made once by shard 0."""

from __future__ import annotations

import logging

from shardd.metadata.commands import CreateUser, Ref, UpdateUser
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

_log = logging.getLogger(__name__)


async def ensure_root(
    writer: MetadataWriter, passwords: Passwords, name: str, password: str, password_hash: str = ""
) -> bool:
    """Creates the root user when there is no user at all; True when it was created. One that has switched itself off
    (the released server lets it) is switched on again: a start is the way back in. `password_hash`: without it that of
    `password` is computed.

    Raises ShardError when the log does not take it.
    """
    if writer.state.users:
        await _activate_root(writer)
        return False
    command = CreateUser(name, password_hash or await passwords.hash(password), True, ROOT_PERMISSIONS)
    result = await writer.bootstrap(Ref(ROOT_USER_ID, 0), command)
    if result.status != Status.OK:
        raise ShardError(Status(result.status), "the root user cannot be created")
    return True


async def _activate_root(writer: MetadataWriter) -> None:
    root = writer.state.users.get(ROOT_USER_ID)
    if root is None or root.active:
        return
    ref = Ref(root.id, root.incarnation)
    result = await writer.bootstrap(ref, UpdateUser(ref, None, True))
    if result.status != Status.OK:
        raise ShardError(Status(result.status), "the root user cannot be switched on again")
    _log.warning("the root user was inactive and is active again")
