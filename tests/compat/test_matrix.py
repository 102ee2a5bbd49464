"""The short form of `make test-compat`: one client of each kind of frames, on one server. The Rust client is in the
long form alone: it takes minutes to build."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.compat import matrix
from tests.compat.matrix import CLIENTS, COLUMNS, Found, judge_writing

SHORT = (
    "iggy-py 0.1.0",
    "iggy-py 0.2.0",
    "iggy-py 0.4.0",
    "apache-iggy 0.6.0",
    "apache-iggy 0.8.0",
    "apache-iggy 0.9.0",
)
RIGHT: dict[str, Any] = {
    "login": None,
    "wrong": "InvalidResponse(42)",
    "create": [None, "1012", None],
    "send": None,
    "nowhere": "3007",
    "polls": [[[0, "one"], [1, "two" * 300]], [[2, "three"]], []],
}
# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(600)


def test_clients_of_every_kind_read_what_the_others_wrote_and_share_a_group() -> None:
    if subprocess.run([*matrix.APART, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network of its own can be made here")
    command = [sys.executable, "-m", "tests.compat.matrix", "--only", *SHORT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=matrix.PAGE.parents[1])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "clients do everything that they can" in done.stdout


def test_the_page_has_every_client() -> None:
    page = matrix.PAGE.read_text()
    assert f"| client | {' | '.join(COLUMNS)} |" in page
    assert all(f"| {client} | " in page for client in CLIENTS)


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        ({"login": "Unauthenticated"}, "log in"),
        ({"wrong": None}, "log in"),
        ({"create": [None, None, None]}, "create"),
        ({"send": "ConnectionError"}, "send"),
        ({"polls": [[[0, "one"]], [[2, "three"]], []]}, "poll"),
        ({"polls": [RIGHT["polls"][0], RIGHT["polls"][0], []]}, "commit"),
        ({"failed": "it crashed"}, "send"),
    ],
)
def test_canary_what_does_not_work_is_no_yes(changed: dict[str, Any], column: str) -> None:
    right, wrong = Found("python"), Found("python")
    judge_writing("iggy-py 0.2.6", right, RIGHT)
    judge_writing("iggy-py 0.2.6", wrong, RIGHT | changed)
    assert set(right.cells.values()) == {"yes"} and wrong.cells[column].startswith("no: ")
    assert not wrong.works
