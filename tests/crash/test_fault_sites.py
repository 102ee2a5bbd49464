"""The short form of the metadata's part of `make fault` (native: native/tests/test_fault_life.c)."""

from __future__ import annotations

from tests.crash import fault_sites


def test_an_error_at_any_call_of_the_metadata_disk_loses_nothing_that_was_acknowledged() -> None:
    found = fault_sites.sweep(fault_sites.SHORT_ERRNOS)
    print(f"{found.pairs} pairs of call site and errno, calls: {dict(found.calls)}")
    assert not found.findings, "\n".join(found.findings[: fault_sites.SHOWN_MAX])
    assert found.pairs > 300
    used = {"open", "close", "size", "pread", "pwrite", "ftruncate", "fdatasync", "rename", "sync_directory"}
    assert used <= set(found.calls), "a call of the seam is not part of the life"


def test_a_write_that_was_acknowledged_and_not_done_is_found() -> None:
    lies = fault_sites.sweep_lies()
    assert lies.pairs > 10
    assert len(lies.findings) >= lies.pairs
