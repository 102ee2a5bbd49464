"""A cut or dirty tail of a log, as a crash of the machine leaves it: all before it is there, and sending goes on."""

from __future__ import annotations

from pathlib import Path

from tests.crash.torn import through_a_server

CUTS = 20  # `make crash-torn` makes 100


def test_everything_before_a_torn_tail_is_there_and_offsets_continue(tmp_path: Path) -> None:
    through_a_server(tmp_path, CUTS)
