"""Ids of streams, topics, groups and users: the id freed last is given out first, else the next higher one
(docs/protocol/primitives.md#ids). Ids are dense: used and free ones together are 0 .. n-1. One that was chosen
(docs/protocol/legacy.md#ids) may lie above: those between are free then, and the lowest of them is the next of them."""

from __future__ import annotations


def next_id(free: tuple[int, ...], used: int, chosen: int | None = None) -> int:
    """The id that the next object gets."""
    if chosen is not None:
        return chosen
    return free[-1] if free else used


def free_after(free: tuple[int, ...], used: int, given: int) -> tuple[int, ...]:
    """What is free when `given` is not any more. LookupError: it was not free before."""
    if free and free[-1] == given:
        return free[:-1]
    known = used + len(free)
    if given >= known:
        return (*range(given - 1, known - 1, -1), *free)
    at = free.index(given) if given in free else -1
    if at < 0:
        raise LookupError(given)
    return (*free[:at], *free[at + 1 :])


def is_free(free: tuple[int, ...], used: int, chosen: int | None, limit: int) -> bool:
    """Whether an object may get the chosen id; `limit`: below which ids are."""
    if chosen is None:
        return True
    return 0 <= chosen < limit and (chosen in free or chosen >= used + len(free))
