"""Values that Liftbridge has encrypted at rest (docs/formats.md#liftbridge-values), opened with its master key.

offset size field
0      1    n           length of the wrapped key, 40 for one of 32 bytes
1      n    data key    wrapped with the master key: AES key wrap with padding, RFC 5649
1 + n  12   nonce
..          ciphertext of AES-256-GCM without associated data, its tag of 16 bytes last
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap_with_padding

from shardd.migration.errors import MigrationError

VARIABLE: Final = "LIFTBRIDGE_ENCRYPTION_KEY"
_MASTER_BYTES: Final = (16, 32)
_WRAPPED_BYTES: Final = 40
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SEALED_BYTES_MIN: Final = 1 + _WRAPPED_BYTES + _NONCE_BYTES + _TAG_BYTES
_KEYS_MAX: Final = 1_024  # a partition makes one at each start of its server


class SealedError(Exception):
    """A value that the key does not open; the text is a sentence."""


def master_key(environment: Mapping[str, str]) -> bytes | None:
    """The raw bytes of the variable; None without it. MigrationError for another length than Liftbridge takes."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    key = text.encode(errors="surrogateescape")
    if len(key) not in _MASTER_BYTES:
        raise MigrationError(f"{VARIABLE} has {len(key)} bytes; the key of Liftbridge has 16 or 32")
    return key


def looks_sealed(value: bytes) -> bool:
    """Whether it may well be an encrypted value: there is no mark for it. Text never is."""
    if len(value) < _SEALED_BYTES_MIN or value[0] != _WRAPPED_BYTES:
        return False
    try:
        value[1 : 1 + _WRAPPED_BYTES].decode()
    except UnicodeDecodeError:
        return True
    return False


class Opener:
    """Opens the values of one source."""

    def __init__(self, master: bytes) -> None:
        self._master = master
        self._keys: dict[bytes, AESGCM] = {}

    def fits(self, value: bytes) -> bool:
        """Whether the master key has wrapped the data key of this value, which has a check of its own."""
        return looks_sealed(value) and self._data_key(value) is not None

    def open(self, value: bytes) -> bytes:
        """SealedError."""
        if len(value) < _SEALED_BYTES_MIN or value[0] != _WRAPPED_BYTES:
            raise SealedError("a value of an encrypted stream is not encrypted")
        key = self._data_key(value)
        if key is None:
            raise SealedError("its data key was wrapped with another master key")
        nonce_at = 1 + _WRAPPED_BYTES
        try:
            return key.decrypt(
                value[nonce_at : nonce_at + _NONCE_BYTES], value[nonce_at + _NONCE_BYTES :], associated_data=None
            )
        except InvalidTag:
            raise SealedError("its authentication tag does not match") from None

    def _data_key(self, value: bytes) -> AESGCM | None:
        wrapped = value[1 : 1 + _WRAPPED_BYTES]
        if wrapped not in self._keys:
            try:
                key = aes_key_unwrap_with_padding(self._master, wrapped)
            except InvalidUnwrap:
                return None
            if len(key) != 32:
                return None
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            self._keys[wrapped] = AESGCM(key)
        return self._keys[wrapped]
