"""What sessions of 0.9 remember after the end of their connection: bounded in number and time."""

from __future__ import annotations

import random

from shardd.service.kept_sessions import KEPT_MAX, KEPT_OF_USER_MAX, KEPT_S, KeptSessions, User

ROOT: User = (1, 1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def chosen(number: int) -> bytes:
    return number.to_bytes(16, "little")


def found(kept: KeptSessions, number: int) -> tuple[int, bytes] | None:
    entry = kept.find(chosen(number))
    return None if entry is None else (entry.number, entry.memory)


def test_the_latest_of_a_client_is_found_until_its_time_has_passed() -> None:
    clock = Clock()
    kept = KeptSessions(clock)
    kept.keep(chosen(1), ROOT, 5, b"five")
    clock.now_s += KEPT_S / 2
    kept.keep(chosen(1), ROOT, 6, b"six")
    clock.now_s += KEPT_S - 1
    assert found(kept, 1) == (6, b"six")
    clock.now_s += 1
    assert found(kept, 1) is None and len(kept) == 0


def test_a_logout_is_noted_only_where_something_was() -> None:
    kept = KeptSessions(Clock())
    kept.keep(chosen(1), ROOT, 5, b"")
    assert found(kept, 1) is None
    kept.keep(chosen(1), ROOT, 5, b"five")
    kept.keep(chosen(1), ROOT, 6, b"")
    assert found(kept, 1) == (6, b"")


def test_a_user_with_many_pushes_out_its_own_ones() -> None:
    kept = KeptSessions(Clock())
    kept.keep(chosen(0), (2, 1), 1, b"other")
    for number in range(1, KEPT_MAX + 10):
        kept.keep(chosen(number), ROOT, number, b"own")
    assert found(kept, 0) == (1, b"other")
    assert len(kept) == KEPT_OF_USER_MAX + 1
    assert found(kept, KEPT_MAX + 9) is not None and found(kept, 1) is None


def test_all_together_are_bounded() -> None:
    kept = KeptSessions(Clock())
    for number in range(KEPT_MAX + 100):
        kept.keep(chosen(number), (number % 50, 1), number, b"own")
    assert len(kept) == KEPT_MAX
    assert found(kept, 99) is None and found(kept, 100) is not None


def test_in_any_order_of_events_the_bounds_hold_and_nothing_of_another_client_is_found() -> None:
    generator, clock = random.Random(76), Clock()
    kept, expected = KeptSessions(clock), dict[int, tuple[int, float]]()
    for number in range(5000):
        client = generator.randrange(60)
        if generator.random() < 0.6:
            kept.keep(chosen(client), (client % 3, 1), number, chosen(client))
            expected[client] = (number, clock.now_s)
        elif client in expected:
            at, since_s = expected[client]
            there = clock.now_s - since_s < KEPT_S
            assert found(kept, client) == ((at, chosen(client)) if there else None)
        clock.now_s += generator.random() * 4
    assert len(kept) <= 60
