"""Refused connections are reported as counts, not one by one."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from shardd.worker.refusals import report_refusals


def test_what_has_grown_is_said_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    counters = {"refused_connections": 0, "refused_by_address": 0, "refused_before_login": 0, "timeouts": 0}

    async def scenario() -> None:
        reporting = asyncio.create_task(report_refusals(lambda: counters, 0.01))
        await asyncio.sleep(0.05)
        counters.update(refused_connections=5000, timeouts=3)
        await asyncio.sleep(0.05)
        counters.update(refused_connections=5001)
        await asyncio.sleep(0.05)
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    numbers = [record.getMessage().split()[0] for record in caplog.records]
    assert sorted(numbers) == ["1", "3", "5000"]
