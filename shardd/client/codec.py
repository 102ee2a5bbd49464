"""The codec of messages: the native one where it is installed, else the pure one of `messages.py`. They are tested as
one. SHARDD_CLIENT_CODEC=pure takes the pure one."""

from __future__ import annotations

import os
from collections.abc import Iterable

from shardd.client import messages
from shardd.client.errors import ProtocolError, SettingsError
from shardd.client.messages import Message, PayloadLines, Polled

try:
    from shardd.client import _codec
except ImportError:  # a distribution for every machine
    IS_NATIVE = False
else:
    IS_NATIVE = os.environ.get("SHARDD_CLIENT_CODEC") != "pure"


def _records_of(payloads: Iterable[bytes], headers: bytes = b"") -> list[bytes]:
    """As `messages.records_of`."""
    try:
        return _codec.records_of(payloads if isinstance(payloads, list) else list(payloads), headers)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _decode_polled(answer: bytes, head_size: int = messages.POLLED_HEAD.size) -> Polled:
    """As `messages.decode_polled`."""
    try:
        return Polled(*_codec.decode_polled(answer, Message, head_size))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _payload_lines(answer: bytes, head_size: int = messages.POLLED_HEAD.size) -> PayloadLines:
    """As `messages.payload_lines`."""
    try:
        return PayloadLines(*_codec.payload_lines(answer, head_size))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def decode_position(answer: bytes) -> Polled:
    """The answer of poll_position. ProtocolError."""
    return messages.with_history(answer, decode_polled(answer, messages.POSITION_HEAD_BYTES))


if IS_NATIVE:
    records_of, encode_batch = _records_of, _codec.encode_batch
    decode_polled, payload_lines = _decode_polled, _payload_lines
else:
    records_of, encode_batch = messages.records_of, messages.encode_batch
    decode_polled, payload_lines = messages.decode_polled, messages.payload_lines
