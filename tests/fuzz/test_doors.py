"""The short form of `make fuzz-doors`, and what it must find."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fuzz.doors import DOORS
from tests.fuzz.http_door import read_answer
from tests.fuzz.lanes import FindingError

INPUTS = 800
EXPECTED = {"http": {"200", "400", "404", "422", "ended"}, "grpc": {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "wire"}}
EXPECTED["quic"] = {"0", "3", "1009"}


@pytest.mark.parametrize("door", [*DOORS])
def test_mutated_requests_at_a_door_are_answered(door: str, tmp_path: Path) -> None:
    counts = asyncio.run(DOORS[door](tmp_path / "data", INPUTS, 7, lambda inputs: None))
    assert counts["inputs"] >= INPUTS
    assert counts.keys() >= EXPECTED[door]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (b"garbage\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200", "half an answer"),
    ],
)
def test_answers_that_must_not_be_are_found(said: bytes, told: str) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(said)
        reader.feed_eof()
        await read_answer(reader)

    with pytest.raises(FindingError, match=told):
        asyncio.run(read())


def test_a_fault_in_a_door_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The door for HTTP fails where it tells a size."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import importlib.abc, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'shardd.doors.http.system_routes':\n"
        "            import shardd.doors.http.sizes as sizes\n"
        "            sizes.size_text = lambda *_: 1 // 0\n"
        "        return None\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(FindingError):
        asyncio.run(DOORS["http"](tmp_path / "data", INPUTS, 7, lambda inputs: None))
