"""Refused connections are reported as counts, not one by one."""

from __future__ import annotations

import logging

import pytest

from shardd.worker.refusals import RefusalReport


def test_what_has_grown_is_said_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    counters = {"refused_connections": 0, "refused_by_address": 0, "refused_before_login": 0, "timeouts": 0}
    refusals = RefusalReport(lambda: counters)
    with caplog.at_level(logging.WARNING):
        refusals.report()
        counters.update(refused_connections=5000, timeouts=3)
        refusals.report()
        refusals.report()
        counters.update(refused_connections=5001)
        refusals.report()
    assert [record.getMessage().split()[0] for record in caplog.records] == ["5000", "3", "1"]
