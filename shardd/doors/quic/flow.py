"""A QUIC connection that takes only what it was granted.

aioquic doubles its limits of flow control whenever half of them is used, whatever the application does with the data,
and keeps room for gaps in a stream. So a client that sends one byte far ahead, again and again, would make it allocate
gigabytes. Here limits grow by `grant` and `grant_stream` alone. Bound to aioquic 1.7: what is overridden is private."""

from __future__ import annotations

from typing import Any, Final

from aioquic._buffer import Buffer
from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import MAX_STREAM_DATA_FRAME_CAPACITY, Limit, QuicConnection, QuicConnectionError
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.stream import QuicStream

GAPS_MIN: Final = 256  # of a stream, between what has come; as many it may always have
GAP_BYTES: Final = 1792  # of what it was granted, for each further one: a packet that is lost and one that is not
HANDSHAKE_GAPS_MAX: Final = 16  # of the bytes of TLS
GAPS_LOOKED_AT_MAX: Final = 16_384  # by the frames of one datagram: each looks at all of its stream, 1 to 2 ms
_MAX_UDP_PAYLOAD_SIZE: Final = 0x03  # the transport parameter (RFC 9000, 18.2)
_DROPPED_MIN: Final = 64  # streams that are remembered after their end, before these are looked for


class _Granted(Limit):
    """It does not grow by itself."""

    def __init__(self, of: Limit) -> None:
        self.granted = of.value
        super().__init__(of.frame_type, of.name, of.value)

    @property
    def value(self) -> int:
        return self.granted

    @value.setter
    def value(self, wanted: int) -> None:
        """aioquic wants to."""


class BoundedQuic(QuicConnection):
    """`streams_max`: of the client's at a time, both ways; one-way streams there are none. `datagram_bytes_max`: of
    larger ones the client is told that they are lost."""

    def __init__(self, *, streams_max: int, datagram_bytes_max: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._datagram_bytes_max = datagram_bytes_max
        self._looked_at = 0  # gaps, by the frames of the datagram that is handled
        self._local_max_data = self._granted = _Granted(self._local_max_data)
        self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent = streams_max
        self._local_max_streams_uni.value = self._local_max_streams_uni.sent = 0
        self._dropped: dict[int, int] = {}  # by stream: up to which byte what came is given back
        self._freed_bytes = 0

    def grant(self, count: int) -> None:
        """The client may send so many bytes more, all streams together."""
        self._granted.granted += count

    def grant_stream(self, stream_id: int, offset: int) -> None:
        """And in this stream up to that byte."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.max_stream_data_local = max(stream.max_stream_data_local, offset)

    def drop(self, stream_id: int, told: int = 0) -> int:
        """What has come of a stream is not kept any more, nor is what comes from now on, which `take_freed` tells.
        Bytes that came so far, the first time; those behind a gap wait in the receiver and count later. `told`: how
        much events have brought, all that came of a stream that is over both ways."""
        if stream_id in self._dropped:
            return 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return told
        if len(self._dropped) > 2 * len(self._streams) + _DROPPED_MIN:
            self._dropped = {each: came for each, came in self._dropped.items() if each in self._streams}
        self._dropped[stream_id] = came = _delivered_bytes(stream)
        return came

    def take_freed(self) -> int:
        """Bytes of dropped streams that have come since the last time."""
        freed, self._freed_bytes = self._freed_bytes, 0
        return freed

    def taken_bytes(self, stream_id: int) -> int | None:
        """How much of what was written the client has; None: all, and the stream is over."""
        stream = self._streams.get(stream_id)
        return None if stream is None or stream.sender.is_finished else stream.sender._buffer_start

    def forget(self) -> None:
        """The connection is over: answers that were not read go at once, not when the collector finds them."""
        for stream in self._streams.values():
            stream.sender._buffer.clear()
            stream.receiver._buffer.clear()

    def may_answer(self, stream_id: int) -> bool:
        """Nobody has, and the client has not said that it does not want to know."""
        stream = self._streams.get(stream_id)
        sender = None if stream is None else stream.sender
        return sender is not None and sender._buffer_fin is None and sender._reset_error_code is None

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        self._looked_at = 0
        super().receive_datagram(data, addr, now)

    def _handle_stream_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        stream_id = _stream_id_of(buf)
        super()._handle_stream_frame(context, frame_type, buf)
        stream = self._streams.get(stream_id)
        if stream is not None:
            granted = stream.max_stream_data_local - stream.receiver.starting_offset()
            self._check_gaps(stream, max(GAPS_MIN, granted // GAP_BYTES), frame_type)
        self._free(stream_id)

    def _handle_crypto_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        super()._handle_crypto_frame(context, frame_type, buf)
        self._check_gaps(self._crypto_streams[context.epoch], HANDSHAKE_GAPS_MAX, frame_type)

    def _check_gaps(self, stream: QuicStream, gaps_max: int, frame_type: int) -> None:
        """The library takes any number of gaps, and frames: 100 KB of single bytes with gaps cost up to a second for
        each datagram. A path that loses every second packet of a long frame leaves one for each two packets."""
        gaps = len(stream.receiver._ranges)
        self._looked_at += gaps
        if gaps > gaps_max:
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, frame_type, "too many gaps in a stream")
        if self._looked_at > GAPS_LOOKED_AT_MAX:
            raise QuicConnectionError(QuicErrorCode.INTERNAL_ERROR, frame_type, "too many frames at gaps in a datagram")

    def _serialize_transport_parameters(self) -> bytes:
        value = encode_uint_var(self._datagram_bytes_max)
        parameter = encode_uint_var(_MAX_UDP_PAYLOAD_SIZE) + encode_uint_var(len(value)) + value
        return bytes(super()._serialize_transport_parameters()) + parameter

    def _handle_reset_stream_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        stream_id = _stream_id_of(buf)
        super()._handle_reset_stream_frame(context, frame_type, buf)
        self._free(stream_id)

    def _free(self, stream_id: int) -> None:
        before = self._dropped.get(stream_id)
        stream = self._streams.get(stream_id)
        if before is None or stream is None:
            return
        came = _delivered_bytes(stream)
        self._freed_bytes += came - before
        self._dropped[stream_id] = came

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: Any, stream: QuicStream) -> None:
        if stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        frame = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        assert stream.stream_id is not None
        frame.push_uint_var(stream.stream_id)
        frame.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local


def _delivered_bytes(stream: QuicStream) -> int:
    """Of what came, what does not wait for bytes before it."""
    receiver = stream.receiver
    return int(receiver.highest_offset if receiver.is_finished else receiver._buffer_start)


def _stream_id_of(buf: Buffer) -> int:
    """Of the frame that is read next."""
    at = buf.tell()
    stream_id = buf.pull_uint_var()
    buf.seek(at)
    return int(stream_id)
