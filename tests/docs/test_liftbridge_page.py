"""What docs/liftbridge.md shows is what happens, with the client of Liftbridge that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Reader
from tests.migration import liftbridge_source as lb
from tests.migration.liftbridge_source import Entry
from tests.support.venvs import liftbridge_python

PAGE = Path(__file__).parents[2] / "docs" / "liftbridge.md"
# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(600)


def test_every_block_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    first = [Entry(n, b"%d" % n, b"key", subject="orders.in") for n in (0, 1, 5)]
    lb.write_stream(tmp_path / "old", "orders", {0: first}, {0: [Entry(0, b"0", subject="orders.in.1")]})
    lb.write_stream(tmp_path / "old", "__cursors", {0: [lb.cursor("orders", 0, "c", 5, 0)]})
    reader = Reader(tmp_path, python=liftbridge_python("gufo-liftbridge"))
    compared = 0
    for shown, said in reader.follow(PAGE.read_text()):
        assert shown == said
        compared += 1
    assert compared == 3
