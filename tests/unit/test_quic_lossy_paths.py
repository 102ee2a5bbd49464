"""A long frame over a path that loses packets, as slow start makes each path do, arrives whole."""

from __future__ import annotations

import heapq
import itertools
import ssl
from typing import Any, Final

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamDataReceived

from shardd.doors.quic.flow import GAPS_MIN, BoundedQuic
from tests.unit.test_quic_handshakes import server_configuration

CLIENT: Final = ("192.0.2.1", 1)
SERVER: Final = ("192.0.2.2", 2)
FRAME_BYTES: Final = 7 << 20
WINDOW_BYTES: Final = 8 << 20
END_S: Final = 60.0  # of the clock of the path
TIMER_S: Final = 1e-6  # from one call of a timer to the next at least
DATAGRAM_BYTES: Final = 8 << 10


class Path:
    """The way from the client has a queue, which loses what finds no room; the way back has none."""

    def __init__(self, bits_per_s: float, round_trip_s: float, queue_bytes: int) -> None:
        self._bytes_per_s, self._one_way_s, self._queue_bytes = bits_per_s / 8, round_trip_s / 2, queue_bytes
        self._free_at_s = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, QuicConnection, bytes | None]] = []
        self.now_s = 0.0
        self.got_bytes = self.lost = self.gaps_max = 0
        self.is_whole = self.is_closed = False
        self.client = QuicConnection(configuration=QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE))
        self.server = BoundedQuic(
            streams_max=1,
            datagram_bytes_max=DATAGRAM_BYTES,
            configuration=server_configuration(WINDOW_BYTES),
            original_destination_connection_id=self.client.original_destination_connection_id,
        )

        self._due_s: dict[QuicConnection, float | None] = {self.client: None, self.server: None}

    def run(self) -> None:
        self.client.connect(SERVER, now=0.0)
        self._flush(self.client)
        while self._events and self.now_s < END_S and not self.is_whole and not self.is_closed:
            self.now_s, _, to, data = heapq.heappop(self._events)
            if data is not None:
                to.receive_datagram(data, SERVER if to is self.client else CLIENT, self.now_s)
            elif self._due_s[to] == self.now_s:
                self._due_s[to] = None
                to.handle_timer(self.now_s)
            else:
                continue  # a timer that was moved
            while (event := to.next_event()) is not None:
                self._note(to, event)
            self._flush(to)

    def _note(self, of: QuicConnection, event: Any) -> None:
        if isinstance(event, HandshakeCompleted) and of is self.client:
            self.client.send_stream_data(0, bytes(FRAME_BYTES), end_stream=True)
        elif isinstance(event, StreamDataReceived):
            self.got_bytes += len(event.data)
            self.is_whole = event.end_stream
        elif isinstance(event, ConnectionTerminated):
            self.is_closed = True

    def _flush(self, of: QuicConnection) -> None:
        for data, _ in of.datagrams_to_send(self.now_s):
            if of is self.server:
                self._push(self.now_s + self._one_way_s, self.client, data)
            elif max(0.0, self._free_at_s - self.now_s) * self._bytes_per_s + len(data) > self._queue_bytes:
                self.lost += 1
            else:
                self._free_at_s = max(self._free_at_s, self.now_s) + len(data) / self._bytes_per_s
                self._push(self._free_at_s + self._one_way_s, self.server, data)
        due_s = of.get_timer()
        if due_s is not None:
            due_s = max(due_s, self.now_s + (TIMER_S if self._due_s[of] is None else 0.0))
            if due_s != self._due_s[of]:
                self._push(due_s, of, None)
        self._due_s[of] = due_s
        for stream in self.server._streams.values():
            self.gaps_max = max(self.gaps_max, len(stream.receiver._ranges))

    def _push(self, at_s: float, to: QuicConnection, data: bytes | None) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), to, data))


@pytest.mark.parametrize(("mbit_per_s", "round_trip_ms", "queue_kib"), [(100, 100, 64), (400, 60, 64)])
def test_a_long_frame_over_a_path_that_loses_packets_arrives_whole(
    mbit_per_s: int, round_trip_ms: int, queue_kib: int
) -> None:
    path = Path(mbit_per_s * 1e6, round_trip_ms / 1000, queue_kib << 10)
    path.run()
    assert path.lost > 0 and path.gaps_max > GAPS_MIN, "the path loses too little to prove anything"
    assert path.got_bytes == FRAME_BYTES and path.is_whole and not path.is_closed
