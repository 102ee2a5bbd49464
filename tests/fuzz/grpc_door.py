"""Mutated messages at the door for Liftbridge over gRPC, and connections whose HTTP/2 is changed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.doors.liftbridge_server import ROOT, LiftbridgeServer  # first: it sets how grpc is loaded

import grpc  # isort: skip
import grpc.aio  # isort: skip

from shardd.protocol.liftbridge import api, api_messages
from tests.fuzz.door_lanes import FuzzedDoor, Work
from tests.fuzz.http_requests import mutated
from tests.fuzz.lanes import FindingError
from tests.support import wire
from tests.support.certificates import Authority

LANES: Final = 4
CALLS: Final = 12  # of a lane beside each other
CALL_TIMEOUT_S: Final = 120.0
STREAM_TIMEOUT_S: Final = 0.3
_WIRE_CHANCE: Final = 0.03
_ODD_LOGIN_CHANCE: Final = 0.002  # a wrong password waits in a line
NAMES: Final = ("s", "s2", "orders", "a.b", "g", "c1", "c2", "")
_ODD_NAMES: Final = (
    "\0", "\x1b[2J", "*", ">", "a.*", ".", "..", "a b", "\r\n", "ü", "\U0001f980", "x" * 255, "x" * 256, "x" * 70_000,
    "__cursors", "__activity", "$SYS.>", "_INBOX.x",
)  # fmt: skip
_NUMBERS: Final = (0, 1, 2, -1, 3, 100, 2**20, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
_BITS: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}
_ODD_METADATA: Final = (
    ("authorization", "Basic !!"), ("authorization", "Bearer x"), ("authorization", ""), ("x" * 500, "y" * 2_000),
    ("x-bin", b"\0\xff"), ("grpc-timeout", "1H"),
)  # fmt: skip
_ENDS_OF_FAULTS: Final = ("Unexpected <class", "Exception", "Traceback")
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Messages:
    """Requests of each method: right values, odd values, changed bytes."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)

    def request(self, method: str) -> bytes:
        message = api_messages.message_class(api.request_of(method))()
        self._fill(message)
        data = message.SerializeToString()
        return mutated(data, self.dice) if self.dice.random() < 0.25 else data

    def _fill(self, message: Any) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.dice.random() < 0.3:
                continue
            with contextlib.suppress(ValueError, UnicodeEncodeError):  # what the client's own library refuses
                self._set(message, field)

    def _set(self, message: Any, field: Any) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[self._name()] = self.dice.randbytes(self.dice.choice((0, 1, 30)))
        elif field.is_repeated:
            values = [self._value(field) for _ in range(self.dice.choice((0, 1, 1, 2, 3)))]
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            self._fill(getattr(message, field.name))
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        dice = self.dice
        match field.type:
            case field.TYPE_STRING:
                return self._name()
            case field.TYPE_BYTES:
                return dice.randbytes(dice.choice((0, 1, 10, 100, 5_000)))
            case field.TYPE_BOOL:
                return dice.random() < 0.5
            case field.TYPE_ENUM:
                return dice.choice((*(each.number for each in field.enum_type.values), 17, -1))
        return dice.choice(_NUMBERS[:3] if dice.random() < 0.7 else _NUMBERS)

    def _name(self) -> str:
        return self.dice.choice(NAMES if self.dice.random() < 0.8 else _ODD_NAMES)

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        if self.dice.random() < _ODD_LOGIN_CHANCE:
            return (self.dice.choice(_ODD_METADATA),)
        return (ROOT,) if self.dice.random() < 0.8 else ()

    def wire(self) -> bytes:
        """A connection of HTTP/2 with a call of one method, changed."""
        data = self.request(self.dice.choice(api.METHODS))
        whole = call_of(f"/{api.SERVICE}/{self.dice.choice(api.METHODS)}".encode(), data[:16_000])
        odd = self.dice.choices([_frame(kind, 0, 1, b"\0" * 4) for kind in range(12)], k=self.dice.randrange(4))
        return mutated(whole + b"".join(odd), self.dice)


def call_of(path: bytes, message: bytes) -> bytes:
    """All that a client says on a connection with one call."""
    heads = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
    heads[b"content-type"] = b"application/grpc"
    block = b"".join(_literal(name, value) for name, value in heads.items())
    body = b"\0" + struct.pack(">I", len(message)) + message
    return _PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, block) + _frame(0, 1, 1, body)


def _literal(name: bytes, value: bytes) -> bytes:
    """A field of HPACK that no table holds; only for texts below 127 bytes."""
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


class GrpcLane:
    """Calls beside each other over a channel."""

    def __init__(
        self, address: str, channel: Any, context: ssl.SSLContext | None, seed: str, counts: Counter[str]
    ) -> None:
        self._address, self._context = wire.host_and_port(address), context
        self._channel, self._messages, self._counts = channel, Messages(seed), counts

    async def calls(self, work: Work) -> None:
        """One after the other."""
        while not work.is_over:
            await self._step()
            work.sent(1)

    async def _step(self) -> None:
        if self._messages.dice.random() < _WIRE_CHANCE:
            await self._wire()
            return
        method = self._messages.dice.choice(api.METHODS)
        requests = [self._messages.request(method)]
        began_s = time.monotonic()
        try:
            await self._call(method, requests)
            self._counts["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self._counts[error.code().name] += 1
            text = error.details() or ""
            if any(each in text for each in _ENDS_OF_FAULTS):
                raise FindingError(f"{method} {requests[0].hex()}: {error.code().name} {text}") from None
            if time.monotonic() - began_s >= CALL_TIMEOUT_S:  # the door says the same of an ack that will not come
                raise FindingError(f"no answer within {CALL_TIMEOUT_S:.0f} s to {method} {requests[0].hex()}") from None

    async def _call(self, method: str, requests: list[bytes]) -> None:
        metadata, path = self._messages.metadata(), f"/{api.SERVICE}/{method}"
        if method in api.CLIENT_STREAMING:
            requests += [self._messages.request(method) for _ in range(self._messages.dice.randrange(3))]
            call = self._channel.stream_stream(path)(iter(requests), timeout=CALL_TIMEOUT_S, metadata=metadata)
        elif method in api.SERVER_STREAMING:
            call = self._channel.unary_stream(path)(requests[0], timeout=STREAM_TIMEOUT_S, metadata=metadata)
        else:
            answer = await self._channel.unary_unary(path)(requests[0], timeout=CALL_TIMEOUT_S, metadata=metadata)
            api_messages.message_class(api.response_of(method)).FromString(answer)
            return
        answers = 0
        async for answer in call:
            api_messages.message_class(api.response_of(method)).FromString(answer)
            answers += 1
            if answers > 3:
                call.cancel()
                return

    async def _wire(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address, ssl=self._context)
        data = self._messages.wire()
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                if writer.can_write_eof():
                    writer.write_eof()
                    await asyncio.wait_for(reader.read(), CALL_TIMEOUT_S)
            self._counts["wire"] += 1
        except TimeoutError:
            raise FindingError(f"a connection that has ended is kept: {data.hex()}") from None
        finally:
            writer.close()


class GrpcDoor(FuzzedDoor):
    """The door for Liftbridge, plain or over TLS; lanes share channels."""

    process_name: ClassVar[str] = "liftbridge"
    lanes: ClassVar[int] = LANES
    growth_max_bytes: ClassVar[int] = 512 << 20

    def __init__(self, data: Path, *, over_tls: bool = False) -> None:
        settings, self._authority = dict[str, str](), None
        if over_tls:
            self._authority = Authority.make(data.parent)
            certificate = self._authority.sign("fuzz", names="DNS:localhost,IP:127.0.0.1", algorithm="ec")
            files = {"CERT_FILE": str(certificate), "KEY_FILE": str(certificate.with_suffix(".key"))}
            settings = {f"SHARDD_LIFTBRIDGE_TLS_{name}": value for name, value in files.items()}
            settings["SHARDD_LIFTBRIDGE_TLS_ENABLED"] = "true"
        self._liftbridge = LiftbridgeServer(data, settings)
        super().__init__(self._liftbridge)

    def prepare(self) -> None:
        """Inputs create and delete streams themselves."""

    def _channel(self) -> Any:
        address, options = self._liftbridge.liftbridge_address, [("grpc.use_local_subchannel_pool", 1)]
        if self._authority is None:
            return grpc.aio.insecure_channel(address, options)
        credentials = grpc.ssl_channel_credentials(self._authority.certificate.read_bytes())
        return grpc.aio.secure_channel(address, credentials, options)

    def _context(self) -> ssl.SSLContext | None:
        if self._authority is None:
            return None
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        context.set_alpn_protocols(["h2"])
        return context

    async def lane(self, number: int, seed: str, work: Work) -> None:
        async with self._channel() as channel:
            lane = GrpcLane(self._liftbridge.liftbridge_address, channel, self._context(), seed, work.counts)
            async with asyncio.TaskGroup() as beside:
                for _ in range(CALLS):
                    beside.create_task(lane.calls(work))

    async def ask(self) -> None:
        async with self._channel() as channel:
            answer = await channel.unary_unary(f"/{api.SERVICE}/FetchMetadata")(b"", timeout=CALL_TIMEOUT_S)
            api_messages.FetchMetadataResponse.FromString(answer)
