"""Directories of Apache Iggy 0.9 and later are recognised and refused with one sentence; nothing in them changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.server.data_directory import prepare_directory
from shardd.server.errors import StartupError
from tests.support import data_fixture
from tests.unit.log_files import tree

OF_LATER_SERVERS = ("metadata/journal.wal", "metadata/snapshot.bin")


def with_file(data: Path, name: str) -> Path:
    (data / name).parent.mkdir(parents=True, exist_ok=True)
    (data / name).write_bytes(b"\1" * 256)
    return data


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", OF_LATER_SERVERS)
def test_a_directory_of_a_later_server_is_refused(name: str, streams: bool, fresh: bool, tmp_path: Path) -> None:
    data = with_file(tmp_path / "data", name)
    if streams:
        (data / "streams" / "0" / "topics" / "0" / "partitions" / "0").mkdir(parents=True)
    before = tree(data)
    with pytest.raises(StartupError, match="nothing was removed" if fresh else r"Apache Iggy 0\.9 or later") as caught:
        prepare_directory(data, fresh=fresh)
    assert "\n" not in str(caught.value) and tree(data) == before


def test_a_directory_of_0_8_that_a_later_server_has_opened_is_refused(tmp_path: Path) -> None:
    data = with_file(data_fixture.unpack(tmp_path), OF_LATER_SERVERS[0])
    before = tree(data)
    with pytest.raises(StartupError, match=r"Apache Iggy 0\.9 or later"):
        prepare_directory(data, fresh=False)
    assert tree(data) == before


def test_without_such_a_file_it_is_taken_over(tmp_path: Path) -> None:
    data = data_fixture.unpack(tmp_path)
    prepare_directory(data, fresh=False)
    assert (data / "info.json").exists()
