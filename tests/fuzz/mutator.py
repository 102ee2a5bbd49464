"""Mutated frames from templates, recorded frames and a corpus. Everything is drawn from one seeded generator."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from shardd.protocol.codes import Code
from shardd.protocol.legacy.generations import UNVERSIONED, generation_of_login, is_versioned_login
from tests.fuzz.templates import TEMPLATES, Template, build
from tests.support import golden, wire

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "classic-0.8.0.jsonl.xz"
CORPUS = Path(__file__).parent / "corpus" / "frames.txt"
HOT = (Code.PING, Code.SEND_MESSAGES, Code.STORE_CONSUMER_OFFSET)  # are in work beside each other (docs/adr/0034)
FRAME_BYTES_MAX = 4096  # of a recorded frame that is mutated
NUMBERS = (0, 1, 3, 4, 5, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x100000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_HEAD = struct.Struct("<II")
_NUMBERS = tuple(struct.pack("<I", number) for number in NUMBERS)
_WEIGHTS = {template.code: template.weight for template in TEMPLATES}
_OTHER_CODE_WEIGHT = 0.3  # codes that no command has
_ROOTS = tuple(
    struct.pack("<I", code) + root
    for code in (Code.UPDATE_USER, Code.CHANGE_PASSWORD)
    for root in (wire.identifier(0), wire.identifier("iggy"))
)


def recorded_frames() -> list[bytes]:
    """The requests of the golden data, right and wrong ones, as whole frames."""
    found = set()
    for scenario in golden.load(GOLDEN):
        for step in scenario.steps:
            request = golden.request_bytes(step, {})
            if 8 <= len(request) <= FRAME_BYTES_MAX and _HEAD.unpack_from(request)[0] == len(request) - 4:
                found.add(request)
    return sorted(found)


def corpus_frames() -> list[bytes]:
    """The frames of tests/fuzz/corpus; each line is role, code, status and the frame in hex."""
    lines = CORPUS.read_text().splitlines() if CORPUS.exists() else []
    return [bytes.fromhex(line.split()[3]) for line in lines]


def changes_root(frame: bytes) -> bool:
    """A request to rename, stop or re-key root's own account: nobody could log in after a right one."""
    return frame[4:].startswith(_ROOTS)


class Mutator:
    """`next` gives one frame whose length field is right, so that the answers can be counted."""

    def __init__(
        self,
        seed: str,
        templates: Sequence[Template] = TEMPLATES,
        whole: Sequence[bytes] = (),
        *,
        is_versioned: bool = False,
    ) -> None:
        """`whole`: frames to mutate beside those that are recorded. `is_versioned`: an earlier client whose logins tell
        its release."""
        self._random = random.Random(seed)
        self._templates = templates
        self._is_classic = templates is TEMPLATES
        self._is_versioned = is_versioned
        self._template_weights = list(accumulate(template.weight for template in templates))
        self._whole = [*recorded_frames(), *corpus_frames(), *whole]
        weights = (_WEIGHTS.get(_HEAD.unpack_from(frame)[1], _OTHER_CODE_WEIGHT) for frame in self._whole)
        self._whole_weights = list(accumulate(weights))

        self._hot_templates = [template for template in templates if template.code in HOT]
        self._hot_whole = [frame for frame in self._whole if _HEAD.unpack_from(frame)[1] in HOT]

    def restart(self, seed: str) -> None:
        """Begins the sequence of another seed; the frames to mutate stay."""
        self._random.seed(seed)

    def sweep(self) -> list[bytes]:
        """Every command with every value of every field, one change at a time, in a drawn order."""
        frames = []
        for template in self._templates:
            right = [field[0] for field in template.fields]
            frames.append(build(template, right))
            for place, field in enumerate(template.fields):
                for value in field[1:]:
                    frames.append(build(template, [*right[:place], value, *right[place + 1 :]]))
        frames = [frame for frame in frames if self._may_be_sent(frame)]
        self._random.shuffle(frames)
        return frames

    def next(self) -> bytes:
        while not self._may_be_sent(frame := self._frame()):
            continue
        return frame

    def _may_be_sent(self, frame: bytes) -> bool:
        """A classic lane stays one: no login says that it is an earlier client. An earlier one does not become classic
        and then one without a version, of whom nobody knows whether it reads bodies of refusals."""
        code = _HEAD.unpack_from(frame)[1]
        told = generation_of_login(code, frame[8:])
        if self._is_classic:
            becomes_another = told is not None
        elif self._is_versioned:
            becomes_another = told is UNVERSIONED
        else:
            becomes_another = told is None and is_versioned_login(code, frame[8:])
        return not changes_root(frame) and not becomes_another

    def hot(self) -> bytes:
        """As `next`, of the commands that the engine takes several of at a time."""
        if self._random.random() < 0.5:
            return self._from_template(self._hot_templates[self._below(len(self._hot_templates))])
        frame = self._one_of(self._hot_whole)
        return self._changed_bytes(frame) if self._random.random() < 0.3 else frame

    def tail(self) -> bytes:
        """Ends a connection: a frame that is cut, one that is longer than any may be, or bytes without a meaning."""
        draw, frame = self._random.random(), self.next()
        if draw < 0.5:
            return frame[: 1 + int(self._random.random() * (len(frame) - 1))]
        if draw < 0.8:
            length = (11 << 20) + int(self._random.random() * (0xFFFFFFFF - (11 << 20)))
            return struct.pack("<I", length) + frame[4:]
        return self._random.randbytes(1 + int(self._random.random() * 7))

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def _one_of(self, values: Sequence[bytes]) -> bytes:
        return values[int(self._random.random() * len(values))]

    def _frame(self) -> bytes:
        draw = self._random.random()
        if draw < 0.65:
            (template,) = self._random.choices(self._templates, cum_weights=self._template_weights)
            return self._from_template(template)
        (frame,) = self._random.choices(self._whole, cum_weights=self._whole_weights)
        return self._changed_bytes(frame) if draw < 0.97 else frame

    def _from_template(self, template: Template) -> bytes:
        values = [field[0] for field in template.fields]
        changes = (0, 0, 1, 1, 1, 1, 2, 3)[self._below(8)] if values else 0
        for _ in range(changes):
            place = self._below(len(values))
            draw = self._random.random()
            if draw < 0.8:
                values[place] = self._one_of(template.fields[place])
            elif draw < 0.9:
                values[place] = self._one_of(values)
            else:
                values[place] = values[place][: self._below(len(values[place]) + 1)]
        frame = build(template, values)
        return self._changed_bytes(frame) if self._random.random() < 0.1 else frame

    def _changed_bytes(self, frame: bytes) -> bytes:
        data = bytearray(frame)
        for _ in range((1, 1, 1, 2, 3)[self._below(5)]):
            kind, size = self._below(6), len(data)
            if kind == 0 and size > 8:
                data[8 + self._below(size - 8)] ^= 1 << self._below(8)
            elif kind == 1 and size >= 12:
                at = 8 + self._below(size - 11)
                data[at : at + 4] = self._one_of(_NUMBERS)
            elif kind == 2 and size > 8:
                del data[8 + self._below(size - 8) :]
            elif kind == 3:
                at = min(8, size) + self._below(max(1, size - 8))
                data[at:at] = self._random.randbytes(self._below(64))
            elif kind == 4:
                other = self._one_of(self._whole)
                data[8 + self._below(max(1, size - 8)) :] = other[self._below(len(other)) :]
            elif kind == 5 and size > 8:
                data[4 if self._random.random() < 0.1 else 8 + self._below(size - 8)] = self._below(256)
        data = data.ljust(8, b"\0")
        data[0:4] = struct.pack("<I", len(data) - 4)
        code = _HEAD.unpack_from(data)[1]
        if _WEIGHTS.get(code, 1.0) < 0.1 and self._random.random() > 10 * _WEIGHTS[code]:
            data[4:8] = frame[4:8]  # a change of the code may not make the dear commands frequent
        return bytes(data)
