"""Lanes (`lanes.py`) of the dialect of 0.9: each answer must be the one to the oldest request, by operation, number and
client id."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import replace
from typing import Final

from shardd.protocol import iggy09
from shardd.protocol.errors import Status
from shardd.protocol.legacy.generations import Generation
from tests.fuzz.iggy09_templates import Drawn, Mutator09, fill
from tests.fuzz.lanes import BATCH_FRAMES, FindingError, Lane, Totals
from tests.fuzz.mutator import Mutator
from tests.support.iggy09 import CLIENT_ID, EVICTION, REFUSED, REPLY, RESULT_FRAMED, head

_EVICTED: Final = 0x8000_0000
_FENCED: Final = _EVICTED | 7
_REFUSED_LOGINS: Final = frozenset({_EVICTED | reason for reason in (9, 10, 11, 12)})  # maybe a close follows
# Two connections of the same user come with one id: each login takes the session from the other lane. Numbers go on
# from one to the next, and a drawn one may be the largest there is: now and then all come with other ids.
_ID_FOR_S: Final = 5
_SHARES_ITS_ID_WITH: Final = {8: 5, 14: 11}
_LOST: Final = frozenset({_EVICTED | iggy09.NO_SESSION, _FENCED, Status.INVALID_SESSION})


class Lane09(Lane):
    """Its frames are drawn by a mutator of its own; session and number are filled in when a batch begins."""

    def __init__(
        self,
        address: str,
        number: int,
        role: str,
        seed: int,
        mutator: Mutator,
        totals: Totals,
        generation: Generation | None = None,
    ) -> None:
        super().__init__(address, number, role, seed, mutator, totals, generation)
        self._own = Mutator09(str(seed))
        self._id = bytes([CLIENT_ID[15] ^ _SHARES_ITS_ID_WITH.get(number, number)])
        self._client = CLIENT_ID[:15] + self._id
        self._session, self._next = 0, 1
        self._logged_out = False

    def begin_drawn(self, given: list[Drawn]) -> None:
        """The next batch: these, or what is drawn when there are none."""
        self.begin(self._filled(given) if given else None)

    def _draw(self, seed: str) -> list[bytes]:
        self._own.restart(seed)
        return self._filled([self._own.next() for _ in range(BATCH_FRAMES)])

    def _filled(self, drawn: list[Drawn]) -> list[bytes]:
        if self.token is None and self._batches <= 1:  # its first frame on the connection tells the dialect
            first = drawn[0]
            drawn = [replace(first, changes=tuple(each for each in first.changes if each[0] > 0)), *drawn[1:]]
        frames = []
        for each in drawn:
            frames.append(fill(each, self._session, self._next, self._client))
            self._next += 1
        return frames

    def _log_in(self, made: socket.socket, token: bytes) -> None:
        self._client = CLIENT_ID[:7] + struct.pack("<Q", int(time.monotonic()) // _ID_FOR_S) + self._id
        version = struct.pack("<I", iggy09.VERSION)
        body = version + b"\4fuzz\0010" + token + bytes(4)
        made.sendall(head(256 + len(body), iggy09.REGISTER, client=self._client) + body)
        data, size = b"", 256
        while len(data) < size:
            part = made.recv(size - len(data))
            if not part:
                raise ConnectionError("closed during the login")
            data += part
            if len(data) == 256:
                size = struct.unpack_from("<I", data, 48)[0]
        self._session = struct.unpack_from("<Q", data, 256 + 8)[0] if size > 256 + 16 else 0
        self._next, self._logged_out = time.monotonic_ns(), False  # beyond what the other connection of the id has used

    def _lost_its_login(self) -> bool:
        return self.role != "anonymous" and self._logged_out

    def _take_answers(self) -> None:
        data, at = self._in, 0
        while len(data) - at >= 256:
            size = struct.unpack_from("<I", data, at + 48)[0]
            if len(data) - at < size:
                break
            self._take_answer(bytes(data[at : at + size]))
            at += size
        del data[:at]

    def _take_answer(self, answer: bytes) -> None:
        if self._answered >= len(self._pending):
            raise FindingError(f"an answer too much; {self.describe()}")
        asked = self._pending[self._answered]
        if answer[60] == EVICTION:
            status = _EVICTED | answer[255]
            right = len(answer) == 256 and answer[128:144] == asked[128:144]
        else:
            status = struct.unpack_from("<I", answer, 216)[0]
            echoed = (
                answer[160:176] == asked[128:144] and answer[200:208] == asked[168:176] and answer[208] == asked[176]
            )
            right = answer[60] == REPLY and echoed and (status == 0 or len(answer) == 256)
            if answer[208] in RESULT_FRAMED and answer[256:264] == REFUSED:
                status = struct.unpack_from("<I", answer, 264)[0]
        if not right or status == Status.ERROR:
            raise FindingError(f"a wrong answer ({status}) {answer[:300].hex()}; {self.describe()}")
        code = struct.unpack_from("<I", asked, 196)[0] if asked[176] == iggy09.NON_REPLICATED else 0
        self._totals.seen_09.setdefault((self.role, asked[176], code, status), asked)
        self._totals.statuses[status] += 1
        of_its_session = asked[184:192] == struct.pack("<Q", self._session) and not self._logged_out
        self._totals.fenced += status == _FENCED and of_its_session
        self._logged_out |= status in _LOST or (asked[176] in (iggy09.LOGOUT, iggy09.REGISTER))
        self._answered += 1
        self._last_status = Status.INVALID_CREDENTIALS if status in _REFUSED_LOGINS else status
