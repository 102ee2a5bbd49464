"""How an attacker behaves once it is in, at every door that is a stream of bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.hostile.matrix import lines
from tests.hostile.matrix.door import Means

_AT_ONCE_BYTES: Final = 1 << 16


class Rhythm(Enum):
    """When the next thing is sent, once the one before has gone."""

    NEVER = 0
    ROUND = 1
    ANSWER = 2
    ALWAYS = 3


def _nothing(_means: Means, _number: int) -> bytes:
    return b""


def _many_requests(means: Means, number: int) -> bytes:
    """As much as one write takes. Requests that are numbered go one by one."""
    one, next_one = means.request(number), means.request(number + 1)
    return one * (_AT_ONCE_BYTES // len(one)) if one == next_one else one


@dataclass(frozen=True, slots=True)
class Act:
    """`drips`: a byte in every round. `reads`: it takes what comes."""

    made: Callable[[Means, int], bytes]
    rhythm: Rhythm
    reads: bool = True
    drips: bool = False
    in_pieces: bool = False


ACTS: Final = {
    lines.SILENT: Act(_nothing, Rhythm.NEVER),
    lines.DRIPPING: Act(lambda means, number: means.half(number), Rhythm.NEVER, drips=True),
    lines.UNREAD: Act(lambda means, number: means.large(number), Rhythm.ALWAYS, reads=False),
    lines.PIPELINED: Act(_many_requests, Rhythm.ALWAYS),
    lines.HALF_SENT: Act(lambda means, number: means.half(number), Rhythm.NEVER),
    lines.ONE_BYTE: Act(lambda means, number: means.small(number), Rhythm.ALWAYS, in_pieces=True),
    lines.WRONG_PASSWORD: Act(lambda means, number: means.wrong(number), Rhythm.ANSWER),
    lines.BEHAVED: Act(lambda means, number: means.request(number), Rhythm.ROUND),
}
"""All but handshakes, which come before anybody is in (crowd.py)."""
