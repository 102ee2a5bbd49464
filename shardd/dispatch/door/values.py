"""Requests of doors into the types of the services, and what these return into MessagePack."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, Self, get_args

import msgspec
from immutables import Map

from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Reader
from shardd.protocol.send_request import SendMessages


class ServiceRequest(Protocol):
    """A request type of `shardd.protocol`, both directions."""

    @classmethod
    def read(cls, reader: Reader) -> Self: ...
    def encode(self) -> bytes: ...


def _decode_map(kind: type[Any], value: object) -> object:
    return Map(msgspec.convert(value, dict[get_args(kind)], dec_hook=_decode_map))  # type: ignore[misc]


def _encode_map(value: object) -> object:
    if isinstance(value, Map):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} is no value of a service")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_encode_map)


def encode_value(value: object) -> bytes:
    return _encoder.encode(value)


def keep_encoded(value: object) -> msgspec.Raw:
    """For answers that grow with what is asked about: each part is encoded as it is made."""
    return msgspec.Raw(_encoder.encode(value))


def decoder_of(kind: type[Any]) -> Callable[[msgspec.Raw], object]:
    """Decodes requests of a type. Those that the classic protocol has, have its bounds: a request that cannot be said
    there is refused with 3 or 4, as it is there. Others, and batches of messages, are checked by their service."""
    decoder = msgspec.msgpack.Decoder(kind, dec_hook=_decode_map)
    classic = kind is not SendMessages and hasattr(kind, "read")
    both_ways: type[ServiceRequest] | None = kind if classic else None

    def decode(data: msgspec.Raw) -> object:
        try:
            said = decoder.decode(data)
            return said if both_ways is None else both_ways.read(Reader(said.encode()))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ShardError(Status.INVALID_COMMAND, str(error)) from error
        except (struct.error, ValueError, OverflowError) as error:
            raise ShardError(Status.INVALID_FORMAT, str(error)) from error

    return decode
