"""The tables of docs/limits.md that are made of the sources are as the sources are, and every room that the server
makes is in one (tests/unit/rooms.py)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.source_constants import Number, Sources
from tests.unit.limits_tables import COMMAND, PAGE, written
from tests.unit.rooms import ROOMS, Made, all_made, made_in


def test_tables_of_the_page_are_as_the_sources_are() -> None:
    page = PAGE.read_text()
    assert written(page, Sources()) == page, f"`{COMMAND}` writes them"


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        (("shardd/doors/http/polls.py", "STREAMS_MAX", 65), "| streams of events over HTTP | 65 (`STREAMS_MAX`) |"),
        (
            ("shardd/doors/quic/listener.py", "ADDRESS_SHARE", 4),
            "| 64 MiB (`ALL_POLLS_BYTES_MAX`) | 16 MiB | one address of a user |",
        ),
        (("shardd/metadata/group_shares.py", "GROUPS_MAX", 70_000), "| `GROUPS_MAX` | 70,000 | consumer groups |"),
        (("shardd/doors/http/polls.py", "POLLS_BYTES_MAX", 129 << 20), "| 321 MiB | 321 MiB |"),
        (("native/src/core/reads.h", "POLL_WINDOW_BYTES", 1 << 20), "in blocks of twice their size: 800 MiB"),
        (("shardd/runtime/bus_link.py", "REQUESTS_IN_FLIGHT_MAX", 7), "| 7 (`REQUESTS_IN_FLIGHT_MAX`) |"),
    ],
)
def test_changed_constants_change_the_tables(changed: tuple[str, str, Number], row: str) -> None:
    file, name, value = changed
    page = PAGE.read_text()
    assert row in written(page, Sources({(file, name): value})) and row not in page


def test_rooms_of_the_server_have_a_row() -> None:
    made = Counter(all_made())
    missing, gone = sorted(set(made) - set(ROOMS)), sorted(set(ROOMS) - set(made))
    assert not missing, f"say in tests/unit/rooms.py what these are for: {missing}"
    assert not gone, f"these have a row, but the server makes no such rooms: {gone}"


@pytest.mark.parametrize(
    ("file", "text", "made"),
    [
        ("shardd/doors/new.py", "room = Room(A_MAX, B_MAX)\n", ("A_MAX", "B_MAX")),
        ("shardd/service/new.py", "room = SharedRoom(A_MAX)\n", ("A_MAX",)),
        ("shardd/service/new.py", "turns = FairTurns(3)\n", ("3",)),
        ("shardd/doors/liftbridge/calls.py", "room = Crowd('calls', A_MAX, B_MAX, self)\n", ("A_MAX", "B_MAX")),
        ("shardd/doors/quic/listener.py", "room = _room(A_MAX)\n", ("A_MAX", "A_MAX // ADDRESS_SHARE")),
    ],
)
def test_new_room_is_found(file: str, text: str, made: tuple[str, ...]) -> None:
    assert [*made_in(file, text)] == [Made(file, *made)]
