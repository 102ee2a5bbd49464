"""Argon2id password hashes (docs/protocol/accounts.md#passwords). They cost tens of milliseconds and 19 MiB, and let
other threads run meanwhile."""

from __future__ import annotations

from typing import Final

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

MEMORY_COST_KIB: Final = 19_456
TIME_COST: Final = 2
PARALLELISM: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32

# Of a password that nobody knows, with the parameters above.
_NOBODYS_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$HUmiUaEWLDSfdgIsOVmu3g$LoL6z+pgrTxUnTxm0qwYC1bFoYjiEIzBm+IS2ZF1yMs"
)
_hasher = PasswordHasher(TIME_COST, MEMORY_COST_KIB, PARALLELISM, HASH_BYTES, SALT_BYTES, type=Type.ID)


def hash_password(password: str) -> str:
    """A PHC string with a new random salt. Blocks."""
    return _hasher.hash(password)


def verify_password(password_hash: str, password: str) -> bool:
    """Whether `password` is the one of the PHC string; False when it is not a PHC string. Blocks."""
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


def verify_nothing(password: str) -> None:
    """Does what `verify_password` does: the time must not tell whether a name is known. Blocks."""
    verify_password(_NOBODYS_HASH, password)
