"""Files of tasks that fail: nothing is left of them, and nothing is told beside the failure."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from shardd.spark.sinks import files


class FailedError(RuntimeError):
    pass


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for _ in range(count):
        yield pa.RecordBatch.from_pydict({"n": list(range(1000))})
    raise FailedError


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Python tells of exceptions that nothing can take."""
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: told.append(repr(each.exc_value)))
    return told


def test_a_task_that_fails_tells_only_of_its_failure(
    tmp_path: Path, unraised: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 1)
    with pytest.raises(FailedError):
        files.write(pafs.LocalFileSystem(), str(tmp_path), batches(3), prefix="part")
    gc.collect()
    assert unraised == [] and list(tmp_path.iterdir()) == []


@pytest.fixture
def few_bytes() -> Iterator[None]:
    """No file of this process gets more than 100 bytes: the kernel refuses them, as on a full device."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit_bytes", [0, 100])
def test_a_file_that_cannot_be_written_tells_nothing_more(
    tmp_path: Path, unraised: list[str], few_bytes: None, limit_bytes: int
) -> None:
    """Neither its rows, nor its end, nor (without a byte) its beginning."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    rows = [pa.RecordBatch.from_pydict({"n": list(range(100_000))})]
    with pytest.raises(OSError, match="File too large"):
        files.write(pafs.LocalFileSystem(), str(tmp_path), rows, prefix="part")
    gc.collect()
    assert unraised == [] and list(tmp_path.iterdir()) == []
