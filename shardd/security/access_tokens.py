"""Access tokens of doors: JSON Web Tokens that workers sign and verify (docs/protocol/http.md#tokens). A door only
passes their text on.

They say whose they are, and what that user was at the time: which one of those with the id, with which password, and
after which end of all his access tokens. So they are worth nothing as soon as one of that has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from shardd.metadata.state import State, User
from shardd.metadata.validate_users import ACCESS_TOKEN_ID_BYTES

ALGORITHM: Final = "HS256"  # and no other one, whatever a token says
TOKEN_TEXT_MAX: Final = 4096  # characters


class AccessClaims(msgspec.Struct, frozen=True):
    """What a token says; its field names are those on the wire. Times in whole seconds. `pwd`: a mark of the password,
    `mark`: `User.access_mark`, `inc`: `User.incarnation`."""

    jti: str
    iss: str
    aud: str
    sub: str
    iat: int
    exp: int
    nbf: int
    inc: int
    mark: int
    pwd: str

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.jti)

    @property
    def expires_at_us(self) -> int:
        return self.exp * 1_000_000


class IssuedLogin(msgspec.Struct, frozen=True):
    """What a login rests on that a trusted issuer has vouched for: it ends with the user and with the token."""

    user_id: int
    incarnation: int
    expires_at_s: int


class AccessTokens:
    """`keys`: the first one signs, all of them verify; none: there are no access tokens."""

    def __init__(self, keys: Sequence[bytes], issuer: str, audience: str, expiry_s: int, clock_skew_s: int) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._expiry_s = expiry_s
        self._clock_skew_s = clock_skew_s
        if keys:
            import jwt  # takes longer than a step of the loop may

            self._jwt = jwt

    def __bool__(self) -> bool:
        return bool(self._keys)

    def sign(self, user: User, now_s: int) -> tuple[str, AccessClaims]:
        """A new token of a user."""
        claims = AccessClaims(
            jti=os.urandom(ACCESS_TOKEN_ID_BYTES).hex(),
            iss=self._issuer,
            aud=self._audience,
            sub=str(user.id),
            iat=now_s,
            exp=now_s + self._expiry_s,
            nbf=now_s,
            inc=user.incarnation,
            mark=user.access_mark,
            pwd=_password_mark(user),
        )
        return self._jwt.encode(msgspec.structs.asdict(claims), self._keys[0], algorithm=ALGORITHM), claims

    def verify(self, text: str) -> AccessClaims | None:
        """What a token says that one of the keys has signed, for us, and whose time it is; None for every other one."""
        if len(text) > TOKEN_TEXT_MAX or not text.isascii():
            return None
        for key in self._keys:
            try:
                said = self._jwt.decode(
                    text,
                    key,
                    algorithms=[ALGORITHM],
                    audience=self._audience,
                    issuer=self._issuer,
                    leeway=self._clock_skew_s,
                    options={"require": ["jti", "iss", "aud", "sub", "iat", "exp", "nbf"]},
                )
                claims = msgspec.convert(said, AccessClaims)
                return claims if len(claims.id) == ACCESS_TOKEN_ID_BYTES else None
            except (self._jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError):
                continue
        return None


def user_of(state: State, claims: AccessClaims) -> User | None:
    """Who shows a token; None when it has ended, with or without its user."""
    user = state.users.get(int(claims.sub)) if claims.sub.isdecimal() and len(claims.sub) <= 10 else None
    if user is None or not user.active or claims.id in user.revoked:
        return None
    if (claims.inc, claims.mark) != (user.incarnation, user.access_mark):
        return None
    has_changed_it = bool(user.kept_access) and claims.id == user.kept_access
    return user if has_changed_it or claims.pwd == _password_mark(user) else None


@lru_cache(maxsize=1024)
def _mark_of(password_hash: str) -> str:
    return hashlib.blake2b(password_hash.encode(), digest_size=8, person=b"shardd-access").hexdigest()


def _password_mark(user: User) -> str:
    """Another one with every change of the password, also to the same one: each has a salt of its own. It is asked for
    with every request."""
    return _mark_of(user.password_hash)
