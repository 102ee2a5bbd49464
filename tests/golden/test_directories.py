"""Golden data directories of every format version, opened by a real server: everything in them is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import golden_directory as golden
from tests.support.server import Server


@pytest.mark.parametrize("version", golden.versions())
def test_a_directory_of_an_earlier_version_is_served_whole(version: str, tmp_path: Path) -> None:
    recorded = golden.description(version)
    with Server(golden.unpack(version, tmp_path), {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}) as server:
        assert golden.describe(server.address, recorded["secrets"]) == recorded["seen"]


def test_there_is_a_directory_of_every_version() -> None:
    assert golden.versions()[0] == "v1"
