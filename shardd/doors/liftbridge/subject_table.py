"""What is kept by subjects of NATS, and found by a subject that a message has. Pure.

Subjects without wildcards are keys of a table. Each of the others (`*` is any one token, `>` at the end is one token or
more) has a number, and is that bit of a few integers: for each place of a token one of those that take any there, and
one for each token that some want there. A match is the conjunction of as many integers as the message has tokens, so
that it costs the same whichever patterns somebody chooses: there is no tree whose branches a match would follow. Of a
token that few patterns want at a place the numbers are kept: an integer is as long as its highest bit says, and nobody
should pay for all patterns with each token of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from shardd.protocol.liftbridge.creation import WILDCARD_TOKENS_MAX

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
FEW_MAX: Final = 16  # patterns that want a token at a place, of which the numbers are kept
_Wanted = int | tuple[int, ...]
"""Bits, or numbers."""
_ANY: Final = "*"
_REST: Final = ">"
_MORE: Final = WILDCARD_TOKENS_MAX + 1  # tokens of a subject that has more than a pattern may have


def is_pattern(subject: str) -> bool:
    """Whether it has a wildcard."""
    return (_ANY in subject or _REST in subject) and any(token in (_ANY, _REST) for token in subject.split("."))


class _Patterns:
    """Numbers of patterns. Those that were given back are used again, so that integers are as long as they have to."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._of_length = [0] * (_MORE + 1)  # those that a subject with so many tokens may match
        self._any = [0] * WILDCARD_TOKENS_MAX
        self._with: list[dict[str, _Wanted]] = [{} for _ in range(WILDCARD_TOKENS_MAX)]

    def add(self, pattern: str) -> int:
        """ValueError: it has too many tokens."""
        tokens = pattern.split(".")
        if len(tokens) > WILDCARD_TOKENS_MAX:
            raise ValueError(f"a pattern of {len(tokens)} tokens")
        number = self._free.pop() if self._free else len(self.numbers)
        self.numbers[pattern] = number
        self._turn(tokens, number)
        return number

    def remove(self, pattern: str) -> int:
        """KeyError."""
        number = self.numbers.pop(pattern)
        self._turn(pattern.split("."), number)
        self._free.append(number)
        if not self.numbers:
            self._free.clear()
        return number

    def _turn(self, tokens: list[str], number: int) -> None:
        """On when it is off, and off when it is on."""
        bit, ends_open = 1 << number, tokens[-1] == _REST
        for length in range(len(tokens), _MORE + 1 if ends_open else len(tokens) + 1):
            self._of_length[length] ^= bit
        for at, token in enumerate(tokens):
            if token == _REST:
                for behind in range(at, WILDCARD_TOKENS_MAX):
                    self._any[behind] ^= bit
            elif token == _ANY:
                self._any[at] ^= bit
            else:
                wanted = _turned(self._with[at].get(token, ()), number)
                if wanted:
                    self._with[at][token] = wanted
                else:
                    del self._with[at][token]

    def match(self, subject: str) -> int:
        """The bits of those that a message of this subject finds."""
        tokens = subject.split(".")
        found = self._of_length[min(len(tokens), _MORE)]
        if not found or not all(tokens):
            return 0
        for token, wanted, any_there in zip(tokens, self._with, self._any, strict=False):
            found &= _bits_of(wanted.get(token, 0)) | any_there
            if not found:
                break
        return found


def _bits_of(wanted: _Wanted) -> int:
    if isinstance(wanted, int):
        return wanted
    bits = 0
    for number in wanted:
        bits |= 1 << number
    return bits


def _turned(wanted: _Wanted, number: int) -> _Wanted:
    """With the number, or without it when it is there."""
    if isinstance(wanted, int):
        wanted ^= 1 << number
        return wanted if wanted.bit_count() > FEW_MAX // 2 else tuple(_bits(wanted))
    if number in wanted:
        return tuple(each for each in wanted if each != number)
    return (*wanted, number) if len(wanted) < FEW_MAX else _bits_of((*wanted, number))


class SubjectTable(Generic[K, V]):
    """Values by subject and key."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[K, V]] = {}
        self._patterns = _Patterns()
        self._of_pattern: dict[int, dict[K, V]] = {}  # by number

    @property
    def is_empty(self) -> bool:
        return not self._exact and not self._of_pattern

    def add(self, subject: str, key: K, value: V) -> None:
        """Instead of what has this subject and key. ValueError: wildcards, and more than WILDCARD_TOKENS_MAX tokens."""
        if not is_pattern(subject):
            self._exact.setdefault(subject, {})[key] = value
            return
        number = self._patterns.numbers.get(subject)
        if number is None:
            number = self._patterns.add(subject)
            self._of_pattern[number] = {}
        self._of_pattern[number][key] = value

    def remove(self, subject: str, key: K) -> None:
        """KeyError."""
        at = self._exact[subject] if not is_pattern(subject) else self._of_pattern[self._patterns.numbers[subject]]
        del at[key]
        if at:
            return
        if not is_pattern(subject):
            del self._exact[subject]
        else:
            del self._of_pattern[self._patterns.remove(subject)]

    def at(self, subject: str) -> dict[K, V]:
        """What has just this subject."""
        if not is_pattern(subject):
            return self._exact.get(subject, {})
        number = self._patterns.numbers.get(subject)
        return {} if number is None else self._of_pattern[number]

    def has_match(self, subject: str) -> bool:
        return subject in self._exact or self._patterns.match(subject) != 0

    def match(self, subject: str) -> Iterator[dict[K, V]]:
        """What a message of this subject finds. A wildcard in it is a token as others are, as in NATS."""
        exact = self._exact.get(subject)
        if exact:
            yield exact
        found = self._patterns.match(subject)
        if found:
            for number in _bits(found):
                yield self._of_pattern[number]


def _bits(number: int) -> Iterator[int]:
    """The numbers of those that are on."""
    digits = f"{number:b}"[::-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)
