"""Removes what mutated requests have made on a server."""

from __future__ import annotations

import struct

from shardd.protocol.codes import Code
from tests.support import wire


def remove_streams(control: wire.Wire) -> None:
    for stream in sorted(control.streams().values(), reverse=True):
        control.delete_stream(stream)


def remove_users(control: wire.Wire) -> None:
    """All users but root."""
    data, at, users = control.request(Code.GET_USERS), 0, []
    while at < len(data):
        users.append(struct.unpack_from("<I", data, at)[0])
        at += 14 + data[at + 13]
    for user in users:
        if user != 0:
            control.request(Code.DELETE_USER, wire.identifier(user))


def remove_tokens(control: wire.Wire) -> None:
    """All tokens of the user of this connection."""
    data, at = control.request(Code.GET_PERSONAL_ACCESS_TOKENS), 0
    while at < len(data):
        name = data[at : at + 1 + data[at]]
        control.request(Code.DELETE_PERSONAL_ACCESS_TOKEN, name)
        at += len(name) + 8


def remove_all(control: wire.Wire) -> None:
    remove_streams(control)
    remove_users(control)
    remove_tokens(control)
