"""What ends a call of gRPC (shardd.doors.liftbridge.endpoint): a client that is gone writes no line of the log."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Final, cast

import grpc
import pytest

from shardd.doors.liftbridge import endpoint
from shardd.doors.liftbridge.calls import Context
from shardd.doors.liftbridge.endpoint import Faults, end
from shardd.doors.liftbridge.status import invalid
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from tests.support.on_loop import on_loop

GONE: Final = grpc.aio.InternalError("Failed execute_batch")  # what the library says of it


class GoneContext:
    """Of a call whose client is gone: nothing can be written."""

    def __init__(self) -> None:
        self.aborts = 0

    async def abort(self, _code: grpc.StatusCode, _text: str) -> None:
        self.aborts += 1
        raise GONE


@pytest.mark.parametrize(
    ("error", "aborts"),
    [(GONE, 0), (invalid("a name"), 1), (ShardError(Status.UNAUTHENTICATED), 1)],
    ids=["a write fails", "a request is refused", "a login is refused"],
)
def test_client_is_gone_before_its_error_the_call_is_cancelled_without_a_line(
    error: Exception, aborts: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        context = GoneContext()
        with pytest.raises(asyncio.CancelledError):
            await end(cast(Context, context), error)
        assert context.aborts == aborts

    with caplog.at_level(logging.INFO):
        on_loop(main)()
    assert not caplog.records


class ToldContext:
    """Of a call whose client hears how it ends."""

    async def abort(self, _code: grpc.StatusCode, _text: str) -> None:
        raise grpc.aio.AbortError


class Answer:
    """What a call has when it fails."""


@pytest.mark.parametrize(
    "error",
    [ShardError(Status.TASK_TIMEOUT), WorkerLostError("a worker"), ValueError("a fault")],
    ids=["a request is refused", "a worker is lost", "a fault"],
)
def test_call_ends_with_an_error_that_the_library_keeps_its_frames_are_free(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint._log, "disabled", True)  # records that pytest keeps have the frames, too
    found = list[weakref.ref[Answer]]()

    async def serve() -> None:
        answer = Answer()
        found.append(weakref.ref(answer))
        raise error

    async def main() -> None:
        try:
            await serve()
        except Exception as raised:
            with pytest.raises(grpc.aio.AbortError) as kept:
                await end(cast(Context, ToldContext()), raised)
        assert kept.value.__context__ is error
        assert found[0]() is None, "without a look for garbage"

    gc.disable()
    try:
        on_loop(main)()
    finally:
        gc.enable()


def test_calls_fail_without_end_one_line_in_an_interval_counts_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        faults = Faults()
        for _ in range(100):
            faults.tell(ValueError("a fault"))
        assert [each.getMessage() for each in caplog.records] == ["1 calls failed, the last one so"]
        monkeypatch.setattr(faults, "_next_at_s", 0.0)
        faults.tell(ValueError("a fault"))
        assert caplog.records[-1].getMessage() == "100 calls failed, the last one so"
        assert endpoint.REPORT_INTERVAL_S >= 1

    with caplog.at_level(logging.INFO):
        on_loop(main)()
