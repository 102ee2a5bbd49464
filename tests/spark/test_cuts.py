"""The network between sink and server is cut in the middle of batches; `make spark-cuts` is the long form."""

from __future__ import annotations

import pytest

from tests.spark.cuts import SEMANTICS, Round, judged, play
from tests.support import wire
from tests.support.server import Server


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_cut_of_two_seconds_breaks_no_promise(server: Server, semantics: str) -> None:
    cuts = {"at-least-once": ("silent",), "stable-ids": ("refuse",), "idempotent": ("lost",)}[semantics]
    stream = f"cut-{semantics}"
    made = play(server, stream, Round(semantics, tuple((kind, 2.0) for kind in cuts)))
    assert made.rows and not made.findings
    with wire.connect(server.address) as connection:
        connection.delete_stream(stream)


def test_the_judge_finds_planted_faults() -> None:
    rows = [(n, bytes([n])) for n in range(10)]
    assert all(not judged(each, 10, rows).findings for each in SEMANTICS)
    assert all(judged(each, 10, rows[:9]).findings for each in SEMANTICS)
    assert [bool(judged(each, 10, [*rows, rows[3]]).findings) for each in SEMANTICS] == [False, False, True]
    assert [bool(judged(each, 10, [*rows, (3, b"other")]).findings) for each in SEMANTICS] == [False, True, True]
