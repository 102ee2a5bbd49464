"""One valid request of every classic command, field by field (docs/protocol/commands.md), and what can be wrong with
each field.

Written from the protocol text alone, like `tests.support.wire`. `World` makes the objects that the requests name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support import wire
from tests.support.wire import Wire

BAD_UTF8 = b"\xff\xfe\xfd"
PERMISSIONS = bytes([0] * 5 + [1] + [0] * 4 + [1]) + struct.pack("<I", 0) + bytes([0, 0, 0, 0, 1, 0, 0, 0])


@dataclass(frozen=True, slots=True)
class Field:
    """`kind`: ident, name, text (may be empty), long (u32 length), flag, number, choice (u8 with few values) or raw."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Command:
    code: int
    name: str
    fields: tuple[Field, ...]
    changes: bool = False  # whether success changes what `World.fingerprint` sees

    @property
    def payload(self) -> bytes:
        return b"".join(field.data for field in self.fields)


@dataclass(frozen=True, slots=True)
class Mutation:
    """`statuses`: what it may be answered; None: any status of the table, success too."""

    about: str
    payload: bytes
    statuses: frozenset[int] | None


def ident(value: int | str) -> Field:
    return Field("ident", wire.identifier(value))


def name(text: str) -> Field:
    return Field("name", wire.str8(text))


def text(value: str) -> Field:
    return Field("text", wire.str8(value))


def choice(value: int) -> Field:
    return Field("choice", bytes([value]))


def u32(value: int) -> Field:
    return Field("number", struct.pack("<I", value))


def u64(value: int) -> Field:
    return Field("number", struct.pack("<Q", value))


def commands(stream: str = "st", topic: str = "tp", group: str = "cg", user: str = "bob") -> list[Command]:
    """All 47, on the objects of `World`. Those that delete come last."""
    s, t, g, who = ident(stream), ident(topic), ident(group), ident(user)
    partition = Field("raw", wire.optional_partition(0))
    reader = (Field("choice", b"\x01"), ident("me"), s, t, partition)
    message = wire.message(b"payload", b"")
    address = s.data + t.data + wire.to_partition(0) + struct.pack("<I", 1)
    batch = (u32(len(address)), s, t, Field("raw", wire.to_partition(0)), u32(1))
    index = Field("raw", struct.pack("<IIQ", 0, len(message), 0) + message)
    sizes = (choice(1), u64(0), u64(0), Field("flag", b"\0"))
    plain = [(1, "PING"), (10, "GET_STATS"), (12, "GET_CLUSTER_METADATA"), (20, "GET_ME"), (22, "GET_CLIENTS")]
    plain += [(32, "GET_USERS"), (41, "GET_PERSONAL_ACCESS_TOKENS"), (201, "GET_STREAMS")]
    block = (Field("number", struct.pack("<I", len(PERMISSIONS))), Field("raw", PERMISSIONS))
    return [
        *(Command(code, name_, ()) for code, name_ in plain),
        Command(11, "GET_SNAPSHOT", (choice(2), Field("raw", b"\x01"), choice(4))),
        Command(21, "GET_CLIENT", (u32(1),)),
        Command(31, "GET_USER", (who,)),
        Command(33, "CREATE_USER", (name("eve"), text("secret"), choice(1), Field("flag", b"\1"), *block), True),
        Command(35, "UPDATE_USER", (who, Field("flag", b"\1"), name("rob"), Field("flag", b"\1"), choice(2)), True),
        Command(36, "UPDATE_PERMISSIONS", (who, Field("flag", b"\1"), *block), True),
        Command(37, "CHANGE_PASSWORD", (who, text("secret"), text("other")), True),
        Command(38, "LOGIN_USER", (name("iggy"), text("iggy"), Field("long", bytes(4)), Field("long", bytes(4)))),
        Command(42, "CREATE_PERSONAL_ACCESS_TOKEN", (name("new"), u64(0)), True),
        Command(44, "LOGIN_WITH_PERSONAL_ACCESS_TOKEN", (name("no such token"),)),
        Command(100, "POLL_MESSAGES", (*reader, choice(1), u64(0), u32(10), Field("flag", b"\0"))),
        Command(101, "SEND_MESSAGES", (*batch, index), True),
        Command(102, "FLUSH_UNSAVED_BUFFER", (s, t, u32(0), Field("flag", b"\1"))),
        Command(120, "GET_CONSUMER_OFFSET", reader),
        Command(121, "STORE_CONSUMER_OFFSET", (*reader, u64(1)), True),
        Command(122, "DELETE_CONSUMER_OFFSET", reader, True),
        Command(200, "GET_STREAM", (s,)),
        Command(202, "CREATE_STREAM", (name("new"),), True),
        Command(204, "UPDATE_STREAM", (s, name("renamed")), True),
        Command(300, "GET_TOPIC", (s, t)),
        Command(301, "GET_TOPICS", (s,)),
        Command(302, "CREATE_TOPIC", (s, u32(1), *sizes, name("new")), True),
        Command(304, "UPDATE_TOPIC", (s, t, *sizes, name("renamed")), True),
        Command(402, "CREATE_PARTITIONS", (s, t, u32(1)), True),
        Command(403, "DELETE_PARTITIONS", (s, t, u32(1)), True),
        Command(503, "DELETE_SEGMENTS", (s, t, u32(0), u32(1)), True),
        Command(600, "GET_CONSUMER_GROUP", (s, t, g)),
        Command(601, "GET_CONSUMER_GROUPS", (s, t)),
        Command(602, "CREATE_CONSUMER_GROUP", (s, t, name("new")), True),
        Command(604, "JOIN_CONSUMER_GROUP", (s, t, g), True),
        Command(605, "LEAVE_CONSUMER_GROUP", (s, t, g), True),
        Command(603, "DELETE_CONSUMER_GROUP", (s, t, g), True),
        Command(305, "PURGE_TOPIC", (s, t), True),
        Command(205, "PURGE_STREAM", (s,), True),
        Command(303, "DELETE_TOPIC", (s, t), True),
        Command(203, "DELETE_STREAM", (s,), True),
        Command(43, "DELETE_PERSONAL_ACCESS_TOKEN", (name("tok"),), True),
        Command(34, "DELETE_USER", (who,), True),
        Command(39, "LOGOUT_USER", ()),
    ]


def mutations(command: Command) -> Iterator[Mutation]:
    """Every field cut, and everything that is wrong with a field of its kind."""
    before = b""
    for number, field in enumerate(command.fields):
        after = b"".join(each.data for each in command.fields[number + 1 :])
        where = f"{command.name}, field {number} ({field.kind})"
        for size in sorted({0, len(field.data) // 2, len(field.data) - 1}):
            yield Mutation(f"{where} cut to {size} bytes", before + field.data[:size], _cut_statuses(command, number))
        for about, data, statuses in _values(command, number, field):
            yield Mutation(f"{where}: {about}", before + data + after, statuses)
        before += field.data


def _cut_statuses(command: Command, number: int) -> frozenset[int]:
    """3, for SEND_MESSAGES the status of the first part that does not fit any more
    (docs/protocol/messages.md#batch-checks)."""
    return frozenset({3, 6, 4009, 4033, 4034, 4035, 4036}) if command.code == 101 else frozenset({3})


def _values(command: Command, number: int, field: Field) -> Iterator[tuple[str, bytes, frozenset[int] | None]]:
    in_send = command.code == 101
    structure = frozenset({6, 3} if in_send else {4})
    unreadable = frozenset({6, 3} if in_send else {3})
    if field.kind == "ident":
        for kind in (0, 3, 255):
            yield f"kind {kind}", bytes([kind]) + field.data[1:], unreadable
        yield "length 0", bytes([field.data[0], 0]), structure if in_send else frozenset({3, 4})
        yield "a number of 5 bytes", b"\x01\x05" + bytes(5), structure
        yield "no UTF-8", bytes([2, len(BAD_UTF8)]) + BAD_UTF8, unreadable | {1009, 2010, 3}
        yield "an unknown id", wire.identifier(4000), None
        yield "an unknown name", wire.identifier("nowhere"), None
        yield "the highest id", wire.identifier(2**32 - 1), None
    elif field.kind in ("name", "text"):
        empty = frozenset({4}) if field.kind == "name" else frozenset({44})
        yield "empty", b"\0", empty
        yield "no UTF-8", bytes([len(BAD_UTF8)]) + BAD_UTF8, frozenset({3})
        yield "longer than the frame", b"\xff" + field.data[1:], frozenset({3, 4}) | _swallowed(command, number)
        yield "255 bytes", b"\xff" + b"n" * 255, None
    elif field.kind == "long":
        yield "longer than the frame", b"\xff\xff\xff\xff", frozenset({3})
    elif field.kind == "choice":
        for value in (0, 9, 200, 255):
            yield f"value {value}", bytes([value]), frozenset({3, 4}) | _swallowed(command, number)
    elif field.kind == "number":
        for value in (0, 2 ** (8 * len(field.data)) - 1, 1 << (8 * len(field.data) - 1)):
            yield f"value {value}", value.to_bytes(len(field.data), "little"), None
    elif field.kind == "flag":
        yield "value 2", b"\x02", None
        yield "value 255", b"\xff", None


def _swallowed(command: Command, number: int) -> frozenset[int]:
    """What a length or a choice that takes in later fields may be answered instead."""
    return frozenset({43, 44, 50}) if command.code in (33, 35, 37, 38, 42, 44) and number < 3 else frozenset()


class World:
    """The objects that `commands` name, through a connection of root."""

    def __init__(self, root: Wire) -> None:
        self.root = root

    def rebuild(self) -> None:
        """Everything as it was at first, whatever commands have done."""
        root = self.root
        root.request(35, wire.identifier(0) + b"\1" + wire.str8("iggy") + b"\1\1")
        for stream in root.streams().values():
            root.delete_stream(stream)
        for user in self._users():
            root.request(34, wire.identifier(user))
        for token in self._tokens():
            root.request(43, bytes([len(token)]) + token)
        root.create_stream("st")
        root.create_topic("st", "tp", 2)
        root.send("st", "tp", wire.to_partition(0), [wire.message(b"%d" % number) for number in range(5)])
        root.request(602, wire.identifier("st") + wire.identifier("tp") + wire.str8("cg"))
        root.store_offset("st", "tp", 0, 3, "me")
        root.request(33, wire.str8("bob") + wire.str8("secret") + b"\1\0")
        root.request(42, wire.str8("tok") + bytes(8))

    def fingerprint(self) -> bytes:
        """Everything that a refused command must leave as it is."""
        root, streams = self.root, self.root.request(201)
        parts = [streams, root.request(32), root.request(41)]
        for stream in root.streams().values():
            parts.append(root.request(200, wire.identifier(stream)))
        for user in self._users():
            parts.append(root.request(31, wire.identifier(user)))
        place = wire.identifier("st") + wire.identifier("tp")
        parts += [root.request(300, place), root.request(601, place)]
        parts.append(root.request(600, place + wire.identifier("cg")))
        parts.append(root.request(120, wire.consumer("me") + place + wire.optional_partition(0)))
        return b"|".join(parts)

    def _users(self) -> list[int]:
        """All but root."""
        data, at, found = self.root.request(32), 0, []
        while at < len(data):
            found.append(int.from_bytes(data[at : at + 4], "little"))
            at += 14 + data[at + 13]
        return [user for user in found if user != 0]

    def _tokens(self) -> list[bytes]:
        data, at, found = self.root.request(41), 0, []
        while at < len(data):
            found.append(data[at + 1 : at + 1 + data[at]])
            at += 9 + data[at]
        return found
