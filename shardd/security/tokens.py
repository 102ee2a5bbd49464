"""Personal access tokens (docs/protocol/accounts.md#tokens): the text that its owner gets once, and what the server
keeps of it."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final

from blake3 import blake3

from shardd.metadata.state import State, Token, User
from shardd.protocol import limits

SECRET_BYTES: Final = 50
DIGEST_BYTES: Final = 32
_U64_MAX: Final = (1 << 64) - 1


def new_token() -> str:
    """68 characters of base64."""
    return base64.b64encode(os.urandom(SECRET_BYTES)).decode()


def digest(token: str) -> bytes:
    """BLAKE2b of the text. A text of 400 random bits needs no salt and no slow hash."""
    return hashlib.blake2b(token.encode(), digest_size=DIGEST_BYTES).digest()


def expires_at(now_us: int, expiry_us: int) -> int:
    """Moment of expiry for a requested duration; 0: never, also when the moment lies beyond what a u64 can say."""
    if expiry_us in (limits.SERVER_DEFAULT, limits.UNLIMITED) or now_us + expiry_us > _U64_MAX:
        return 0
    return now_us + expiry_us


def find_token(state: State, text: str) -> tuple[User, Token] | None:
    """The token with this text and its owner. Tokens of an imported directory are known by Iggy's BLAKE3."""
    owners = state.token_owners
    found = owners.get(digest(text)) or owners.get(blake3(text.encode()).digest(length=DIGEST_BYTES))
    if found is None:
        return None
    user = state.users[found[0]]
    return user, user.tokens[found[1]]
