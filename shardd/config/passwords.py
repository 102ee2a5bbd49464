"""`server.password_hash.*`: what the hash of a new password costs whoever computes it (docs/security.md)."""

from __future__ import annotations

from typing import Final

import msgspec

MEMORY_MIN_BYTES: Final = 1 << 20
MEMORY_MAX_BYTES: Final = 1 << 30
PASSES_MAX: Final = 100


class PasswordHash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of Argon2id. A hash that is there already is verified with its own."""

    memory_bytes: int = 19 << 20
    passes: int = 2


DEFAULT: Final = PasswordHash()
