"""Argon2id password hashes (docs/protocol/accounts.md#passwords). They cost tens of milliseconds and 19 MiB unless
`server.password_hash` says otherwise, and let other threads run meanwhile."""

from __future__ import annotations

import functools
from typing import Final

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from shardd.config.passwords import DEFAULT, PasswordHash

PARALLELISM: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32

_OF_DEFAULT: Final = f"$argon2id$v=19$m={DEFAULT.memory_bytes // 1024},t={DEFAULT.passes},p={PARALLELISM}"
# Salt and hash of a password that nobody knows.
_NOBODYS: Final = "HUmiUaEWLDSfdgIsOVmu3g$LoL6z+pgrTxUnTxm0qwYC1bFoYjiEIzBm+IS2ZF1yMs"


@functools.cache
def _hasher(cost: PasswordHash) -> PasswordHasher:
    memory_kib = cost.memory_bytes // 1024
    return PasswordHasher(cost.passes, memory_kib, PARALLELISM, HASH_BYTES, SALT_BYTES, type=Type.ID)


def hash_password(password: str, cost: PasswordHash = DEFAULT) -> str:
    """A PHC string with a new random salt. Blocks."""
    return _hasher(cost).hash(password)


def verify_password(password_hash: str, password: str) -> bool:
    """Whether `password` is the one of the PHC string, at the cost that it says; False when it is not a PHC string.
    Blocks."""
    try:
        return _hasher(DEFAULT).verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


def verify_nothing(like: str, password: str) -> None:
    """Does what `verify_password` does with the PHC string `like` (empty: one of `DEFAULT`), and matches nothing: the
    time must not tell whether a name is known. Blocks."""
    parameters = like.rpartition("$")[0].rpartition("$")[0] if like else _OF_DEFAULT
    verify_password(f"{parameters}${_NOBODYS}", password)
