"""Every command of 0.9 as a list of fields, as in `templates.py`, and what may be wrong in the head of its frame.

A frame is complete when it is sent: session and number are those of its connection (`fill`)."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from shardd.protocol import iggy09
from shardd.protocol.codes import Code
from tests.fuzz.templates import STREAM, TEMPLATES, TOPIC, Field, Template
from tests.support import wire
from tests.support.iggy09 import CLIENT_ID, bytes_of, head

REGISTER: Final = 1
_OPERATION_OF: Final = {code: operation for operation, code in iggy09.OPERATIONS.items()}
_NOT_THERE: Final = frozenset({Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN})
_ADDRESS: Final = wire.identifier(STREAM) + wire.identifier(TOPIC)
# Two messages, the second one with a user header; its checksums are right.
_BATCH: Final = bytes_of(
    "[24] 3adcc319c0600600 7701000000000000 c5792d76122fb4c3 02 [207]"
    "8e5ca59edbbdbfb901[27]05000000000000000000000068656c6c6ffd00a8714bcae1cc02000000000000000000000000000000010000000a"
    "0000000c000000060000000000000000000000776f726c642102010000006b020100000076"
)


def _option(key: bytes, value: bytes, kind: int = 2, key_kind: int = 2) -> bytes:
    return struct.pack("<BI", key_kind, len(key)) + key + struct.pack("<BI", kind, len(value)) + value


def _options() -> Field:
    expiry = _option(b"message_expiry", bytes(7) + b"\1", 12)
    return (
        b"",
        _option(b"durability", b"replicated") + _option(b"message_expiry", b"1 day"),
        expiry + _option(b"max_topic_size", b"\xff" * 8, 12) + _option(b"compression_algorithm", b"gzip"),
        expiry * 2,
        expiry[:-1],
        _option(b"durability", b"never"),
        _option(b"segment_size", bytes(8), 12),
        _option(b"max_topic_size", b"\xff\xfe"),
        _option(b"\xff\xfe", b"x"),
        _option(b"compression_algorithm", b"none", 2, 1),
        struct.pack("<BI", 2, 0xFFFFFFFF) + b"x",
        struct.pack("<BI", 2, 0),
        b"".join(_option(b"%d" % number, b"x") for number in range(1025)),
        bytes(40),
    )


def _batches() -> Field:
    """Right, cut, too long, and with every field of its heads changed."""
    found = [_BATCH, b"", _BATCH[:-1], _BATCH + b"\0", _BATCH[:256], _BATCH[256:], bytes(len(_BATCH))]
    frames = (256, 256 + 48 + 5)
    places = [*range(0, 56, 4), 252, *(at + place for at in frames for place in range(0, 48, 4)), 304, 360]
    for at in places:
        for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
            changed = bytearray(_BATCH)
            struct.pack_into("<I", changed, at, value)
            found.append(bytes(changed))
    return tuple(found)


def _texts(*texts: bytes) -> bytes:
    return b"".join(bytes([len(text)]) + text for text in texts)


def _login() -> tuple[Field, ...]:
    versions = tuple(struct.pack("<I", version) for version in (11264, 0, 11263, 11265, 0xFFFFFFFF))
    accounts = (
        _texts(b"low", b"wrong"),
        _texts(b"nobody", b"x"),
        _texts(b"token that nobody has"),
        _texts(b"", b""),
        b"\xff" + b"x" * 20,
        _texts(b"\xff\xfe", b"x"),
        b"",
    )
    return versions, (_texts(b"sdk", b"1"), b"\0\0", b"\xffa", b""), accounts, (bytes(4), b"\1\0\0\0", b"\xff" * 4, b"")


def _fields(classic: Template) -> tuple[Field, ...]:
    fields = classic.fields
    match classic.code:
        case Code.SEND_MESSAGES:
            count = (struct.pack("<I", 2), *fields[3])
            return (*fields[:3], count, _batches())
        case Code.CREATE_TOPIC:
            return (fields[0], fields[1], fields[-1], _options())
        case Code.UPDATE_TOPIC:
            return (fields[0], fields[1], fields[-1], _options())
        case Code.CREATE_STREAM | Code.UPDATE_STREAM | Code.CREATE_USER | Code.UPDATE_USER:
            return (*fields, _options())
        case Code.STORE_CONSUMER_OFFSET | Code.DELETE_CONSUMER_OFFSET:
            return (*fields, (b"\1", b"\0", b"\2", b""))
        case _:
            return fields


def _own() -> Iterator[Template]:
    group = next(template for template in TEMPLATES if template.code == Code.GET_CONSUMER_GROUP)
    yield Template(iggy09.SYNC_CONSUMER_GROUP, 1.0, group.fields)
    yield Template(iggy09.DESCRIBE_OPTIONS, 0.2, ((b"\1", b"\2", b"\3", b"\0", b"\xff", b""),))


_SENDS = [template for template in TEMPLATES if template.code == Code.SEND_MESSAGES]
TEMPLATES_09: Final[tuple[Template, ...]] = (
    *(
        replace(template, fields=_fields(template))
        for template in TEMPLATES
        if template.code in set(Code) - _NOT_THERE and template not in _SENDS[1:]
    ),
    *_own(),
)
LOGIN: Final = Template(REGISTER, 0.003, _login())


@dataclass(frozen=True, slots=True)
class Drawn:
    """A request before it has session and number. `late`: how far its number is behind the next one; `changes`: what
    else differs in its head, by place."""

    operation: int
    code: int
    body: bytes
    late: int = 0
    changes: tuple[tuple[int, bytes], ...] = ()


HEAD_CHANGES: Final[tuple[tuple[tuple[int, bytes], ...], ...]] = (
    ((0, b"\xff" * 32),),  # after the first frame nobody looks at it
    ((52, b"\xff" * 8),),
    ((62, b"\xff" * 66),),
    ((128, bytes(16)),),
    ((144, b"\1" + bytes(15)),),
    ((152, b"\1"),),
    ((168, bytes(8)),),
    ((176, b"\0"),),
    ((176, b"\2"),),
    *(((176, bytes([operation])),) for operation in (4, 64, 68, 127, 138, 150, 163, 255)),
    ((177, b"\xff" * 7),),
    ((184, bytes(8)),),
    ((184, b"\xff" * 8),),
    ((184, b"\1" + bytes(7)),),
    ((192, b"\xff" * 4),),
    *(((196, struct.pack("<I", code)),) for code in (0, 1, 38, 44, 100, 101, 202, 9999, 0xFFFFFFFF)),
    ((200, b"\xff" * 56),),
)


def drawn_of(template: Template, values: list[bytes]) -> Drawn:
    body = b"".join(values)
    if template.code == Code.SEND_MESSAGES:
        body = struct.pack("<I", sum(map(len, values[:4]))) + body
    if template is LOGIN:
        return Drawn(REGISTER, 0, body, changes=((168, bytes(8)), (184, bytes(8))))
    operation = _OPERATION_OF.get(Code(template.code)) if template.code in set(Code) else None
    return Drawn(operation or iggy09.NON_REPLICATED, 0 if operation else template.code, body)


def changes_root(drawn: Drawn) -> bool:
    """A right one would rename, stop or re-key root's own account."""
    return drawn.operation in (142, 144) and drawn.body.startswith((wire.identifier(0), wire.identifier("iggy")))


def fill(drawn: Drawn, session: int, number: int, client: bytes = CLIENT_ID) -> bytes:
    """The frame. `number`: the next one."""
    frame = bytearray(
        head(256 + len(drawn.body), drawn.operation, drawn.code, max(0, number - drawn.late), session, client=client)
        + drawn.body
    )
    for at, data in drawn.changes:
        frame[at : at + len(data)] = data
    return bytes(frame)


class Mutator09:
    """As `Mutator`, of requests of 0.9."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._templates = (*TEMPLATES_09, LOGIN)
        self._weights = list(accumulate(template.weight for template in self._templates))

    def restart(self, seed: str) -> None:
        self._random.seed(seed)

    def sweep(self) -> list[Drawn]:
        """Every command with every value of every field, one change at a time; every change of a head."""
        found = []
        for template in self._templates:
            right = [field[0] for field in template.fields]
            found.append(drawn_of(template, right))
            for place, field in enumerate(template.fields):
                for value in field[1:]:
                    found.append(drawn_of(template, [*right[:place], value, *right[place + 1 :]]))
        ping = Drawn(iggy09.NON_REPLICATED, Code.PING, b"")
        store = Drawn(_OPERATION_OF[Code.JOIN_CONSUMER_GROUP], 0, _ADDRESS + wire.identifier("nowhere"))
        for one in (ping, store):
            found += [replace(one, changes=changes) for changes in HEAD_CHANGES]
            found += [replace(one, late=late) for late in (1, 2, 1000)]
        found = [each for each in found if not changes_root(each)]
        self._random.shuffle(found)
        return found

    def next(self) -> Drawn:
        while changes_root(drawn := self._one()):
            continue
        return drawn

    def _one(self) -> Drawn:
        chance, pick = self._random.random, self._random.choice
        (template,) = self._random.choices(self._templates, cum_weights=self._weights)
        values = [field[0] if chance() < 0.7 else pick(field) for field in template.fields]
        drawn = drawn_of(template, values)
        if chance() < 0.1 and drawn.body:
            body = bytearray(drawn.body)
            at = self._random.randrange(len(body))
            body[at] = self._random.randrange(256)
            drawn = replace(drawn, body=bytes(body[: at + 1]) if chance() < 0.2 else bytes(body))
        if chance() < 0.05:
            drawn = replace(drawn, changes=(*drawn.changes, *pick(HEAD_CHANGES)))
        if chance() < 0.03:
            drawn = replace(drawn, late=pick((1, 2, 5)))
        return drawn
