"""Handshakes of QUIC take turns by network, and packets of whole connections do not wait behind them."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import pull_quic_transport_parameters
from aioquic.tls import Epoch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from shardd.config.loader import load_settings
from shardd.doors.openings import PER_ADDRESS, Openings
from shardd.doors.quic.connection import HANDSHAKE_S, ClientConnection
from shardd.doors.quic.handshakes import WAITING_MAX, Handshakes
from shardd.doors.quic.listener import DATAGRAM_BYTES_MAX, HANDSHAKE_DATAGRAM_BYTES_MAX, Listener
from shardd.doors.quic.options import QuicOptions
from shardd.runtime.networks import network_of_host
from tests.hostile.quic_inputs import sealed

SERVER: Final = ("2001:db8:1::1", 8080)
FLIGHTS: Final = 20
WAIT_S: Final = 60.0


class Peer:
    """A connection that only notes its datagrams."""

    def __init__(self, host: str, noted: list[str]) -> None:
        self.host = network_of_host(host)
        self._noted = noted

    def take(self, data: bytes) -> None:
        self._noted.append(f"{self.host} {data.decode()}")


def made_of(noted: list[str]) -> tuple[Handshakes[Peer], Callable[[str], Peer]]:
    handshakes = Handshakes[Peer](lambda peer, data, addr: peer.take(data), Openings(lambda: 0.0))
    return handshakes, lambda host: Peer(host, noted)


async def let_run(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0)


def test_handshakes_of_one_network_take_turns_with_those_of_others() -> None:
    noted: list[str] = []

    async def scenario() -> None:
        handshakes, peer = made_of(noted)
        for number in range(2 * PER_ADDRESS):
            handshakes.enter(peer(f"2001:db8::{number:x}"), b"many", SERVER)
        handshakes.enter(peer("2001:db8:0:1::1"), b"few", SERVER)
        await let_run(lambda: len(noted) == 2 * PER_ADDRESS + 1)

    asyncio.run(scenario())
    assert noted.index("2001:db8:0:1::/64 few") == 1


def test_a_connection_that_waits_keeps_a_bounded_number_of_datagrams_in_their_order() -> None:
    noted: list[str] = []

    async def scenario() -> None:
        handshakes, peer = made_of(noted)
        one, gone = peer("192.0.2.1"), peer("192.0.2.2")
        for number in range(10 * WAITING_MAX):
            handshakes.enter(one, b"%d" % number, SERVER)
            handshakes.enter(gone, b"%d" % number, SERVER)
        handshakes.leave(gone)
        await let_run(lambda: len(noted) >= WAITING_MAX)
        handshakes.enter(one, b"later", SERVER)
        await let_run(lambda: noted[-1].endswith("later"))

    asyncio.run(scenario())
    assert noted == [f"192.0.2.1 {number}" for number in range(WAITING_MAX)] + ["192.0.2.1 later"]


class Wire:
    """The socket of the listener: what is sent goes to the client of that address, in the loop's next turn."""

    def __init__(self) -> None:
        self.clients: dict[Any, Client] = {}

    def get_write_buffer_size(self) -> int:
        return 0

    def sendto(self, data: bytes, addr: Any) -> None:
        asyncio.get_running_loop().call_soon(self.clients[tuple(addr)].take, data)

    def close(self) -> None: ...


class Client:
    """A client without a socket. `holds`: what it would send now is kept in `flight`."""

    def __init__(self, listener: Listener, wire: Wire, host: str, port: int) -> None:
        self.address = (host, port)
        self.flight: list[bytes] = []
        self.holds = False
        self.quic = QuicConnection(configuration=QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE))
        self._listener = listener
        wire.clients[self.address] = self
        self.quic.connect(SERVER, now=self.now_s)
        self.send()

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def take(self, data: bytes) -> None:
        """The answer to a first packet is a Retry: the flight behind it costs the door a signature."""
        is_retry = data[0] >> 4 == 0b1111
        self.quic.receive_datagram(data, SERVER, now=self.now_s)
        if is_retry and self.holds:
            self.flight = [packet for packet, _ in self.quic.datagrams_to_send(now=self.now_s)]
        else:
            self.send()

    def send(self) -> None:
        for packet, _ in self.quic.datagrams_to_send(now=self.now_s):
            self._listener.datagram_received(packet, self.address)

    def fly(self) -> None:
        for packet in self.flight:
            self._listener.datagram_received(packet, self.address)


def server_configuration(window_bytes: int = 1 << 20) -> QuicConfiguration:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    certificate = made.sign(key, hashes.SHA256())
    return QuicConfiguration(
        is_client=False, certificate=certificate, private_key=key, max_data=window_bytes, max_stream_data=window_bytes
    )


def listening(wire: Wire) -> Listener:
    settings = load_settings(None, {}).settings

    async def open_client(*_: object) -> Any:
        return SimpleNamespace(handle=0)

    async def close_client(client: object) -> None: ...

    door: Any = SimpleNamespace(open_client=open_client, close_client=close_client)
    listener = Listener(door, QuicOptions(settings.server, settings.quic), server_configuration())
    transport: Any = wire
    listener.connection_made(transport)
    return listener


def test_packets_of_a_whole_connection_do_not_wait_behind_a_flood_of_handshakes() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        other = Client(listener, wire, "2001:db8:0:1::1", 5)
        await let_run(lambda: other.quic._handshake_confirmed)
        flood = [Client(listener, wire, "2001:db8::1", 1000 + number) for number in range(FLIGHTS)]
        for each in flood:
            each.holds = True
        await let_run(lambda: all(each.flight for each in flood))
        for each in flood:
            each.fly()
        handled = sum(each._has_begun for each in listener._all) - 1
        assert len(listener._all) == FLIGHTS + 1 and handled == 0, "a first flight is handled outside its turn"
        (whole,) = (each for each in listener._all if each.is_whole)
        number = other.quic._packet_number
        listener.datagram_received(sealed(other.quic, b"\x01"), other.address)
        assert number in whole._quic._spaces[Epoch.ONE_RTT].received_packets, "it waits behind first flights"
        await let_run(lambda: all(each.quic._handshake_confirmed for each in flood))
        listener.close()

    asyncio.run(scenario())


def test_a_datagram_that_is_too_large_for_a_step_of_the_loop_is_lost() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        await let_run(lambda: client.quic._handshake_confirmed)
        (whole,) = listener._all
        for size, is_taken in ((DATAGRAM_BYTES_MAX // 2, True), (DATAGRAM_BYTES_MAX, False)):
            number = client.quic._packet_number
            listener.datagram_received(sealed(client.quic, b"\x01" * size), client.address)
            assert (number in whole._quic._spaces[Epoch.ONE_RTT].received_packets) is is_taken
        listener.close()

    asyncio.run(scenario())


def test_a_datagram_above_the_usual_path_size_is_lost_before_the_handshake_is_over() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        client.holds = True
        await let_run(lambda: bool(client.flight))
        first = client.flight[0]
        for size, is_taken in ((HANDSHAKE_DATAGRAM_BYTES_MAX + 1, False), (HANDSHAKE_DATAGRAM_BYTES_MAX, True)):
            listener.datagram_received(first.ljust(size, b"\0"), client.address)
            assert bool(listener._all) is is_taken
        (connection,) = listener._all
        listener.datagram_received(first.ljust(HANDSHAKE_DATAGRAM_BYTES_MAX + 1, b"\0"), client.address)
        assert len(listener._handshakes._waiting[connection].datagrams) == 1
        listener.close()

    asyncio.run(scenario())


def test_the_largest_datagram_is_announced() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        told: list[int | None] = []
        parse = client.quic._parse_transport_parameters

        def noted(data: bytes, from_session_ticket: bool = False) -> None:
            told.append(pull_quic_transport_parameters(Buffer(data=data)).max_udp_payload_size)
            parse(data, from_session_ticket)

        client.quic._parse_transport_parameters = noted  # type: ignore[method-assign]
        await let_run(lambda: client.quic._handshake_confirmed)
        assert told == [DATAGRAM_BYTES_MAX]
        listener.close()

    asyncio.run(scenario())


def test_a_connection_that_is_given_up_handles_and_sends_nothing_more() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        client.holds = True
        await let_run(lambda: bool(client.flight))
        for _ in range(WAITING_MAX):
            listener.datagram_received(client.flight[0], client.address)
        (connection,) = listener._all
        handled: list[int] = []

        def fails(data: bytes, addr: object, now: float) -> None:
            handled.append(len(data))
            connection._has_begun = True
            raise ZeroDivisionError

        sent: list[float] = []

        def sends(now: float) -> list[tuple[bytes, object]]:
            sent.append(now)
            return []

        connection._quic.receive_datagram = fails  # type: ignore[method-assign]
        connection._quic.datagrams_to_send = sends  # type: ignore[method-assign]
        await let_run(lambda: bool(handled))
        for _ in range(10 * WAITING_MAX):
            await asyncio.sleep(0)
        connection.transmit()
        assert len(handled) == 1 and not sent and not listener._all
        listener.close()

    asyncio.run(scenario())


def test_a_connection_whose_turn_does_not_come_is_closed_in_time() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        client.holds = True
        await let_run(lambda: bool(client.flight))
        client.fly()
        (connection,) = listener._all
        assert isinstance(connection, ClientConnection) and not connection.is_whole
        connection.look(client.now_s + HANDSHAKE_S)
        assert not listener._all and not listener._handshakes._waiting
        listener.close()

    asyncio.run(scenario())
