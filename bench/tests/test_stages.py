"""Samples of `perf` find their stages."""

from __future__ import annotations

import sys

import pytest

from bench import stages
from bench.stages import OTHER, shares_of, stage_of

KERNEL = "([kernel.kallsyms])"
SCRIPT = f"""
    ffffffff8 copy_folio_from_iter_atomic {KERNEL}
    ffffffff8 ext4_buffered_write_iter {KERNEL}
    ffffffff8 do_pwritev {KERNEL}
    7f0000000 partition_write (/x/_native.so)

    7f0000001 XXH3_accumulate (/x/_native.so)

    7f0000002 [unknown] (/usr/lib/libxxhash.so.0)

    7f0000003 _PyEval_EvalFrameDefault (/x/libpython3.so)
"""


@pytest.mark.parametrize("line", ["both-10x100-c8-t2", "start-memory", "nothing"])
def test_what_cannot_be_sampled_is_refused(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stages", "--lines", line])
    monkeypatch.setattr(stages, "Shardd", None)  # it comes to none
    with pytest.raises(SystemExit) as end:
        stages.main()
    assert end.value.code == 2 and line in capsys.readouterr().err


def test_shares_are_those_of_the_samples() -> None:
    assert shares_of(SCRIPT) == {"write into the page cache": 0.25, "checksum": 0.5, OTHER: 0.25}


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        ("tcp_sendmsg", "send"),
        ("tcp_recvmsg", "receive"),
        ("ext4_file_read_iter", "read from the page cache"),
        ("filemap_get_read_batch", "read from the page cache"),
        ("conn_take_input", "frames and requests"),
        ("batch_check", "check and stamp the batch"),
        ("reads_run_bulk", "find and window the records"),
        ("nothing_of_the_kind", OTHER),
    ],
)
def test_a_function_has_one_stage(function: str, stage: str) -> None:
    assert stage_of([function]) == stage
