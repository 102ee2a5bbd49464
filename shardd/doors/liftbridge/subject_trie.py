"""What is kept by subjects of NATS, and found by a subject that a message has. Pure.

Subjects without wildcards are keys of a table, the others branches of a tree of their tokens: `*` is any one token, `>`
at the end is one token or more."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_ANY: Final = "*"
_REST: Final = ">"


class _Node(Generic[K, V]):
    """What begins with certain tokens. `here`: what ends with them; `rest`: what has `>` behind them."""

    __slots__ = ("any", "here", "next", "rest")

    def __init__(self) -> None:
        self.next: dict[str, _Node[K, V]] = {}
        self.any: _Node[K, V] | None = None
        self.here: dict[K, V] = {}
        self.rest: dict[K, V] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.next or self.any or self.here or self.rest)

    def below(self, token: str) -> _Node[K, V] | None:
        return self.any if token == _ANY else self.next.get(token)


def is_pattern(subject: str) -> bool:
    """Whether it has a wildcard."""
    return (_ANY in subject or _REST in subject) and any(token in (_ANY, _REST) for token in subject.split("."))


class SubjectTrie(Generic[K, V]):
    """Values by subject and key. A match looks at most at as many nodes for each token as there are subjects with
    wildcards."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[K, V]] = {}
        self._root: _Node[K, V] = _Node()

    @property
    def is_empty(self) -> bool:
        return not self._exact and self._root.is_empty

    def add(self, subject: str, key: K, value: V) -> None:
        """Instead of what has this subject and key."""
        if not is_pattern(subject):
            self._exact.setdefault(subject, {})[key] = value
            return
        node = self._root
        for token in subject.split("."):
            if token == _REST:
                node.rest[key] = value
                return
            if token == _ANY:
                node.any = node = node.any or _Node()
            else:
                node = node.next.setdefault(token, _Node())
        node.here[key] = value

    def remove(self, subject: str, key: K) -> None:
        """KeyError."""
        if not is_pattern(subject):
            at = self._exact[subject]
            del at[key]
            if not at:
                del self._exact[subject]
            return
        path: list[tuple[_Node[K, V], str]] = []
        node = self._root
        for token in subject.split("."):
            if token == _REST:
                del node.rest[key]
                break
            below = node.below(token)
            if below is None:
                raise KeyError(subject)
            path.append((node, token))
            node = below
        else:
            del node.here[key]
        _prune(path, node)

    def at(self, subject: str) -> dict[K, V]:
        """What has just this subject."""
        if not is_pattern(subject):
            return self._exact.get(subject, {})
        node = self._root
        for token in subject.split("."):
            if token == _REST:
                return node.rest
            below = node.below(token)
            if below is None:
                return {}
            node = below
        return node.here

    def match(self, subject: str) -> Iterator[dict[K, V]]:
        """What a message of this subject finds. A wildcard in it is a token as others are, as in NATS."""
        exact = self._exact.get(subject)
        if exact:
            yield exact
        if self._root.is_empty:
            return
        tokens = subject.split(".")
        if not all(tokens):
            return
        nodes = [self._root]
        for token in tokens:
            following = []
            for node in nodes:
                if node.rest:
                    yield node.rest
                below = node.next.get(token)
                if below is not None:
                    following.append(below)
                if node.any is not None:
                    following.append(node.any)
            nodes = following
            if not nodes:
                return
        for node in nodes:
            if node.here:
                yield node.here


def _prune(path: list[tuple[_Node[K, V], str]], node: _Node[K, V]) -> None:
    """Takes away nodes from the end of a path for as long as they are empty."""
    for above, token in reversed(path):
        if not node.is_empty:
            return
        if token == _ANY:
            above.any = None
        else:
            del above.next[token]
        node = above
