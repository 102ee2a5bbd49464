"""The UDP socket of the door: which connection a datagram belongs to, and who may make a new one.

An address is validated before it costs anything: every first packet is answered with a Retry, whose token the client
shows with the next one. So limits by address count real ones, and nobody is flooded in somebody else's name."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from typing import Any, Final, cast

from aioquic._buffer import Buffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import TRANSPORT_CLOSE_FRAME_CAPACITY
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler

from shardd.doors.door import Door
from shardd.doors.openings import Openings
from shardd.doors.quic.connection import ClientConnection
from shardd.doors.quic.flow import BoundedQuic
from shardd.doors.quic.handshakes import Address, Handshakes
from shardd.doors.quic.options import QuicOptions
from shardd.runtime.crowds import Room, SharedRoom
from shardd.runtime.networks import network_of_host

ALL_REQUESTS_BYTES_MAX: Final = 64 << 20
ALL_POLLS_BYTES_MAX: Final = 64 << 20  # of answers to polls
STORING_POLLS_MAX: Final = 6  # that store offsets, and are with a worker: they keep their room until it answers
SNAPSHOTS_MAX: Final = 3  # as over HTTP
ALL_ANSWERS_BYTES_MAX: Final = 8 << 20  # of all others
ADDRESS_SHARE: Final = 2  # one address of a user, or of strangers, has at most 1/2 of each
UNSENT_BYTES_MAX: Final = 4 << 20  # datagrams that the kernel does not take; more are lost, as on any path
DATAGRAM_BYTES_MAX: Final = 8 << 10  # that is taken: its frames are one step of the loop, up to 1.3 us for a byte
HANDSHAKE_DATAGRAM_BYTES_MAX: Final = 1500  # taken before the handshake is over: what usual paths carry
LOOK_S: Final = 1.0
_CID_BYTES: Final = 8
_REPORT_INTERVAL_S: Final = 10.0
_log = logging.getLogger(__name__)


class Listener(asyncio.DatagramProtocol):
    """Loop thread only. `configuration`: of connections that come from now on."""

    def __init__(self, door: Door, options: QuicOptions, configuration: QuicConfiguration) -> None:
        self.door = door
        self.options = options
        self.configuration = configuration
        self.requests = _room(ALL_REQUESTS_BYTES_MAX)
        self.polls = _room(ALL_POLLS_BYTES_MAX)
        self.storing = SharedRoom(STORING_POLLS_MAX, of_addresses=False)
        self.answers = _room(ALL_ANSWERS_BYTES_MAX)
        self.snapshots = SharedRoom(SNAPSHOTS_MAX, of_addresses=False)
        self._connections: dict[bytes, ClientConnection] = {}
        self._all: set[ClientConnection] = set()
        self._of: Counter[str] = Counter()
        self._datagram_bytes_max = max(DATAGRAM_BYTES_MAX, options.quic.initial_mtu_bytes)
        self._handshake_bytes_max = max(HANDSHAKE_DATAGRAM_BYTES_MAX, options.quic.initial_mtu_bytes)
        self._tokens = QuicRetryTokenHandler()
        self.openings = Openings()
        self._handshakes: Handshakes[ClientConnection] = Handshakes(self._receive, self.openings)
        self._loop = asyncio.get_running_loop()
        self._report_at_s = 0.0

    # ---- asyncio.DatagramProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Any, transport)  # a DatagramTransport of the loop has more than the type says

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if len(data) > self._datagram_bytes_max:
            return
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=_CID_BYTES)
        except ValueError:
            return
        connection = self._connections.get(header.destination_cid)
        if len(data) > self._handshake_bytes_max and (connection is None or not connection.is_whole):
            return
        if connection is None:
            connection = self._admit(header, len(data), addr[:2])
        if connection is None:
            return
        if connection.is_whole:
            self._receive(connection, data, addr[:2])
        else:
            self._handshakes.enter(connection, data, addr[:2])

    def _receive(self, connection: ClientConnection, data: bytes, addr: Address) -> None:
        was_whole = connection.is_whole
        try:
            connection.datagram_received(data, addr)
        except Exception:  # of a library that reads what strangers send
            self._failed(connection)
        self.openings.counts.handshakes += connection.is_whole and not was_whole

    def error_received(self, exc: Exception) -> None:
        """The other side has no such port: the connection ends by itself."""

    # ---- for connections ----

    def sendto(self, data: bytes, addr: Address) -> None:
        """What connections take for a transport."""
        if self._transport.get_write_buffer_size() < UNSENT_BYTES_MAX:
            self._transport.sendto(data, addr)

    def left(self, connection: ClientConnection) -> None:
        if connection not in self._all:
            return
        self._all.discard(connection)
        self.openings.counts.failed += not connection.is_whole
        self._handshakes.leave(connection)
        for cid in connection.cids:
            self._connections.pop(cid, None)
        connection.cids.clear()
        self._of[connection.host] -= 1
        if not self._of[connection.host]:
            del self._of[connection.host]

    # ---- life ----

    async def look(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = self._loop.time()
            for connection in [*self._all]:
                try:
                    connection.look(now_s)
                except Exception:
                    self._failed(connection)

    def close(self) -> None:
        for connection in [*self._all]:
            connection.close()
        self._transport.close()

    def _failed(self, connection: ClientConnection) -> None:
        now_s = self._loop.time()
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + _REPORT_INTERVAL_S
            _log.warning("a connection of %s is given up", connection.host, exc_info=True)
        connection.gone()

    # ---- who may connect ----

    def _admit(self, header: QuicHeader, size: int, addr: Address) -> ClientConnection | None:
        if size < SMALLEST_MAX_DATAGRAM_SIZE or header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version is not None and header.version not in self.configuration.supported_versions:
            versions = self.configuration.supported_versions
            self.sendto(encode_quic_version_negotiation(header.destination_cid, header.source_cid, versions), addr)
            return None
        if header.packet_type != QuicPacketType.INITIAL or header.version is None:
            return None
        if not header.token:
            self._retry(header, addr)
            return None
        try:
            original = self._tokens.validate_token(
                address=addr, destination_cid=header.destination_cid, token=header.token, now=self._loop.time()
            )
        except ValueError:
            return None
        host = network_of_host(addr[0])
        if len(self._all) >= self.options.connections_max or self._of[host] >= self.options.connections_per_address_max:
            self.openings.counts.refused += 1
            self.sendto(_refusal(header), addr)
            return None
        return self._connection(header, original, addr)

    def _retry(self, header: QuicHeader, addr: Address) -> None:
        cid = os.urandom(_CID_BYTES)
        token = self._tokens.create_token(
            address=addr,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=cid,
            now=self._loop.time(),
        )
        assert header.version is not None
        packet = encode_quic_retry(
            version=header.version,
            source_cid=cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self.sendto(packet, addr)

    def _connection(self, header: QuicHeader, original: bytes, addr: Address) -> ClientConnection:
        quic = BoundedQuic(
            streams_max=self.options.quic.max_concurrent_bidi_streams,
            datagram_bytes_max=self._datagram_bytes_max,
            configuration=self.configuration,
            original_destination_connection_id=original,
            retry_source_connection_id=header.destination_cid,
        )
        host, ip = network_of_host(addr[0]), addr[0]
        whole = f"[{ip}]:{addr[1]}" if ":" in ip else f"{ip}:{addr[1]}"
        connection = ClientConnection(quic, self, host, whole)
        connection.connection_made(cast(asyncio.BaseTransport, self))

        def issued(cid: bytes) -> None:
            connection.cids.add(cid)
            self._connections[cid] = connection

        def retired(cid: bytes) -> None:
            connection.cids.discard(cid)
            self._connections.pop(cid, None)

        connection._connection_id_issued_handler = issued
        connection._connection_id_retired_handler = retired
        issued(header.destination_cid)
        issued(quic.host_cid)
        self._all.add(connection)
        self.openings.counts.begun += 1
        self._of[host] += 1
        return connection


def _room(bytes_max: int) -> Room:
    return Room(bytes_max, bytes_max // ADDRESS_SHARE)


def _refusal(header: QuicHeader) -> bytes:
    """CONNECTION_REFUSED, in the keys of the client's first packet."""
    assert header.version is not None
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=header.version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=header.source_cid,
        version=header.version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    packet = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=TRANSPORT_CLOSE_FRAME_CAPACITY)
    packet.push_uint_var(QuicErrorCode.CONNECTION_REFUSED)
    packet.push_uint_var(QuicFrameType.PADDING)
    packet.push_uint_var(0)
    return builder.flush()[0][0]
