"""The protocol of 0.9 on a real server: the recorded exchange of the released client, and what is not right."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support import iggy09, wire
from tests.support.iggy09 import Connection, bytes_of
from tests.support.server import Server

S = "02066f7264657273"  # orders
T = S + "02066576656e7473"  # events
G = T + "0203677270"  # grp
CREATE_TOPIC = (
    S + "02000000066576656e7473021a000000636f6e73756d65725f6f66667365745f6475726162696c697479020a000000"
    "7265706c696361746564020a0000006475726162696c697479020a0000007265706c696361746564"
)
BATCH = (
    "8e5ca59edbbdbfb901[27]05000000000000000000000068656c6c6ffd00a8714bcae1cc02000000000000000000000000000000010000000a"
    "0000000c000000060000000000000000000000776f726c642102010000006b020100000076"
)
SEND = f"1a000000{T}02040000000002[27]3adcc319c06006007701000000000000c5792d76122fb4c302[207]" + BATCH
POLL = "010104070000000" + "2066f726465727302066576656e7473" + "0100000000010000000000000000" + "0a00000001"
CONSUMER_7 = f"01010407000000{T}0100000000"


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with Connection(server.address) as opened:
        assert opened.login().status == 0
        yield opened


def without(body: bytes, *times: int) -> bytes:
    """With zeros instead of the u64 that begin there: times of the server, and checksums over them."""
    masked = bytearray(body)
    for at in times:
        masked[at : at + 8] = bytes(8)
    return bytes(masked)


def test_the_recorded_exchange_is_answered_as_recorded(server: Server) -> None:
    with Connection(server.address, iggy09.CLIENT_ID) as c:
        ping = c.read(1)
        assert (ping.status, ping.body, ping.head[208], ping.head[160:176]) == (0, b"", 2, iggy09.CLIENT_ID)
        login = c.login()
        assert without(login.body, 8) == without(bytes_of("0000000000000000 0100000000000000 002c0000 05302e392e30"), 8)
        assert login.head[208] == 1 and c.session > 0
        created = c.change(128, bytes_of("066f7264657273"))
        assert without(created.body, 8) == bytes_of("[8] [8] [20] 066f7264657273 [4]")
        assert without(c.read(200, bytes_of(S)).body, 4) == bytes_of("[4] [8] [20] 066f7264657273 [4]")
        missing = c.read(200, bytes_of("02046e6f7065"))
        assert (missing.status, missing.body) == (0, b"")
        assert c.change(128, bytes_of("066f7264657273")).status == 1012  # in the head: the client takes both
        topic = c.change(132, bytes_of(CREATE_TOPIC))
        assert topic.body[:8] == bytes(8) and topic.body[16:20] == b"\x02\0\0\0"
        listed = c.read(301, bytes_of(S)).body
        assert listed[:4] == b"\x01\0\0\0"
        sent = c.change(160, bytes_of(SEND))
        assert (sent.status, sent.body) == (0, b"")
        polled = c.read(100, bytes_of(POLL)).body
        recorded = bytes_of(
            "00000000010000000000000002000000 [16] 5addc319c0600600 3adcc319c0600600 7701000000000000"
            "34541c7999b5a12a 02 [207]" + BATCH
        )
        assert without(polled, 32, 56) == without(recorded, 32, 56)
        nothing = c.read(100, bytes_of(POLL.replace("0100000000000000000a00000001", "0500000000000000000a00000000")))
        assert nothing.body == bytes_of("00000000 0100000000000000 00000000")
        offset = c.read(120, bytes_of(CONSUMER_7))
        assert offset.body == bytes_of("00000000 0100000000000000 0100000000000000")
        group = c.change(139, bytes_of(T + "03677270"))
        assert group.body == bytes_of("00000000 00000000 02000000 00000000 03677270")
        assert c.change(148, bytes_of(G)).body == bytes(4)
        members = c.read(600, bytes_of(G)).body
        assert members[:16] == bytes_of("00000000 02000000 01000000 03677270") and members[20:24] == b"\x02\0\0\0"
        synced = c.read(606, bytes_of(G)).body
        assert without(synced, 0) == bytes_of("[8] 02000000 00000000 01000000")
        as_group = c.read(100, bytes_of("0202036772 70" + T + "0100000000 050000000000000000 0a000000 00"))
        assert as_group.body == polled
        stored = c.change(161, bytes_of("0202036772 70" + T + "0100000000 0100000000000000 01"))
        assert (stored.status, stored.body) == (0, bytes(4))
        assert c.change(162, bytes_of("0202036772 70" + T + "0100000000 01")).body == bytes(4)
        assert c.change(149, bytes_of(G)).body == bytes(4)
        logout = c.change(3)
        assert (logout.status, logout.body, logout.head[208]) == (0, b"", 3)
        assert c.login(password=b"nope-nope").reason == 9


def test_generations_share_what_is_stored(server: Server, connection: Connection) -> None:
    with wire.connect(server.address) as classic:
        stream = classic.create_stream("shared")
        classic.create_topic(stream, "t", 1)
        classic.send(stream, 0, wire.to_partition(0), [wire.message(b"of classic"), wire.message(b"")])
        body = wire.identifier("shared") + wire.identifier("t")
        polled = connection.read(100, b"\x01\x01\x04\x07\0\0\0" + body + bytes_of("01[4] 01[8] 0a000000 00")).body
        assert struct.unpack_from("<I", polled, 12) == (2,)
        assert polled[16 + 256 + 48 :][:10] == b"of classic" and len(polled) == 16 + 256 + 2 * 48 + 10
        assert connection.change(134, body).body == bytes(4)
        assert connection.change(130, wire.identifier("shared")).body == bytes(4)


def test_versions_that_are_not_taken_are_told_the_window(server: Server) -> None:
    for version in (11265, 11263, 0, 12288, 2**32 - 1):
        with Connection(server.address, iggy09.CLIENT_ID) as c:
            evicted = c.login(version=version)
            assert (evicted.reason, evicted.head[144:152]) == (14, struct.pack("<II", 11264, 11264))
            assert c.login().status == 0  # on the same connection


def test_a_login_that_cannot_be_read_is_malformed(server: Server) -> None:
    with Connection(server.address, iggy09.CLIENT_ID) as c:
        for body in (b"", b"\0\x2c\0", bytes_of("002c0000 0872"), bytes_of("002c0000 0161 0162 0463"), bytes(300)):
            c.send(iggy09.head(256 + len(body), 1) + body)
            assert c.receive().reason in (14, 15)
        assert c.login().status == 0


def test_without_a_login_only_ping_is_answered(server: Server) -> None:
    with Connection(server.address, iggy09.CLIENT_ID) as c:
        assert c.read(1).status == 0
        for code in (10, 12, 20, 100, 200, 201, 606):
            assert c.read(code, bytes_of(S)).status == 40
        for operation in (128, 132, 139, 160, 161, 162):
            assert c.change(operation, bytes_of(S)).reason == 1
        assert c.change(3).status == 0


def test_commands_in_the_wrong_place_are_refused(connection: Connection) -> None:
    assert connection.read(38, b"x").reason == 15
    assert connection.read(202, bytes_of("0161")).status == 5
    assert connection.read(9999).status == 3
    assert connection.read(102, bytes_of(T + "[5]")).status == 5
    for operation in (4, 64, 68, 127, 150, 163, 255):
        assert connection.change(operation).status == 3
    assert connection.read(1).status == 0


def test_options_have_their_effect_or_are_refused(connection: Connection, server: Server) -> None:
    def option(key: str, value: bytes, kind: int = 2) -> bytes:
        return (
            b"\x02" + struct.pack("<I", len(key)) + key.encode() + bytes([kind]) + struct.pack("<I", len(value)) + value
        )

    assert connection.change(128, b"\x07options").status == 0
    topic = wire.identifier("options") + b"\x01\0\0\0"
    for key, value, kind, status in (
        ("segment_size", bytes(8), 12, 4041),
        ("messages_required_to_save", bytes(4), 11, 4041),
        ("preallocate_segments", b"\1", 3, 4041),
        ("enforce_fsync", b"true", 2, 4041),
        ("durability", b"sometimes", 2, 4042),
        ("message_expiry", b"soon", 2, 4042),
        ("message_expiry", b"\xff\xfe", 2, 4042),
        ("max_topic_size", b"\1", 12, 4042),
        ("compression_algorithm", b"\1", 9, 4042),
    ):
        assert connection.change(132, topic + b"\x01t" + option(key, value, kind)).status == status, key
    assert connection.change(132, topic + b"\x01t" + option("durability", b"persisted") * 2).status == 4
    assert connection.change(132, topic + b"\x01t\x02\x01").status == 3
    expiry = option("message_expiry", struct.pack("<Q", 60_000_000), 12)
    assert connection.change(132, topic + b"\x01t" + option("durability", b"persisted") + expiry).status == 0
    described = connection.read(300, wire.identifier("options") + wire.identifier("t")).body
    assert struct.unpack_from("<Q", described, 16) == (60_000_000,)
    with wire.connect(server.address) as classic:
        assert b"\x03ack\x07durable" in classic.request(0x53440021, wire.identifier("options") + wire.identifier("t"))
    assert connection.change(129, wire.identifier("options") + b"\x01x" + option("a", b"b")).status == 4041
    assert connection.change(130, wire.identifier("options")).status == 0
    assert connection.read(13, b"\x02").body == bytes(4)
    assert connection.read(13, b"\x09").status == 3


OPTION_KEYS = ("compression_algorithm", "message_expiry", "max_topic_size", "durability", "consumer_offset_durability")


def test_described_options_have_the_defaults_of_this_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {
        "SHARDD_SYSTEM_PARTITION_ACK": "durable",
        "SHARDD_SYSTEM_TOPIC_MESSAGE_EXPIRY": "1 h",
        "SHARDD_SYSTEM_TOPIC_MAX_SIZE": "10 GiB",
        "SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": "zstd",
    }
    persisted = (2, b"persisted")
    for environment, expected in (
        (settings, ((2, b"gzip"), (12, struct.pack("<Q", 3_600_000_000)), (12, struct.pack("<Q", 10 << 30)))),
        ({}, ((2, b"none"), (12, b"\xff" * 8), (12, b"\xff" * 8))),
    ):
        levels = (persisted, persisted) if environment else ((2, b"replicated"), (2, b"replicated"))
        with Server(tmp_path_factory.mktemp("described"), environment) as own, Connection(own.address) as c:
            assert c.login().status == 0
            assert described(c.read(13, b"\x01").body) == dict(zip(OPTION_KEYS, (*expected, *levels), strict=True))


def described(body: bytes) -> dict[str, tuple[int, bytes]]:
    found, at = dict[str, tuple[int, bytes]](), 4
    for _ in range(struct.unpack_from("<I", body)[0]):
        key = body[at + 1 : at + 1 + body[at]].decode()
        at += 1 + body[at]
        kind, length = struct.unpack_from("<BI", body, at)
        found[key] = kind, body[at + 5 : at + 5 + length]
        at += 5 + length
        at += 4 + struct.unpack_from("<I", body, at)[0]
    assert at == len(body)
    return found


MUTATED = {
    128: "046f6e6365",
    129: S + "0474776f78",
    132: CREATE_TOPIC,
    133: T + "06666f6f666f6f",
    134: T,
    136: T + "01000000",
    137: T + "01000000",
    138: T + "00000000 01000000",
    139: T + "03677270",
    140: G,
    141: "04626f62310870617373776f72640201200000000000000000010000000001010000000001000000000102000000000000010000",
    142: "0204626f62310104626f62320101",
    143: "0204626f6231",
    144: "0204626f62310870617373776f72640970617373776f726432",
    145: "0204626f623100",
    146: "05746f6b656e [8]",
    147: "05746f6b656e",
    148: G,
    149: G,
    160: SEND,
    161: CONSUMER_7 + "[8] 01",
    162: CONSUMER_7 + "01",
}
READ = {
    11: "01 01 04", 12: "", 13: "01", 20: "", 21: "01000000", 22: "", 31: "02046967677 9", 32: "", 41: "", 100: POLL,
    120: CONSUMER_7, 200: S, 201: "", 300: T, 301: S, 600: G, 601: T, 606: G,
}  # fmt: skip


@pytest.mark.parametrize("command", [*MUTATED, *READ])
def test_every_command_answers_whatever_one_byte_becomes(connection: Connection, command: int) -> None:
    """One frame for each request, and the connection goes on."""
    changes = command in MUTATED
    body = bytes_of((MUTATED if changes else READ)[command])
    ask = connection.change if changes else connection.read
    step = max(1, len(body) // 40)
    for at in range(0, len(body), step):
        for value in (0x00, 0x01, 0x7F, 0xFF, body[at] ^ 1):
            answer = ask(command, body[:at] + bytes([value]) + body[at + 1 :])
            assert answer.reason == 0 and answer.head[208] == (command if changes else 2)
            assert answer.status == 0 or not answer.body
        ask(command, body[:at])
        ask(command, body + bytes(at))
    assert connection.read(1).status == 0


def test_heads_with_any_byte_changed_never_stop_the_server(server: Server) -> None:
    """Each on a connection of its own: an answer, or the end of the connection."""
    for at in (*range(48, 64), *range(128, 200), 255):
        for value in (0x01, 0x80, 0xFF):
            frame = bytearray(iggy09.head(256, 2, 1, 1))
            frame[at] = value
            with Connection(server.address, iggy09.CLIENT_ID) as c:
                c.send(bytes(frame))
                size = struct.unpack_from("<I", frame, 48)[0]
                if 256 < size <= 64 << 20:  # more is to come
                    continue
                assert c.receive().head[60] in (8, 13)
    with Connection(server.address, iggy09.CLIENT_ID) as c:
        assert c.login().status == 0


def test_the_other_dialect_alone_is_spoken_when_the_setting_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    only = Server(tmp_path_factory.mktemp("classic"), {"SHARDD_TCP_DIALECT": "classic"})
    only.start()
    try:
        with wire.connect(only.address) as classic:
            classic.ping()
        with Connection(only.address) as c:
            c.send(iggy09.head(256, 2, 1))
            assert c.receive_exactly(8) == struct.pack("<II", 3, 0)
    finally:
        only.stop()
