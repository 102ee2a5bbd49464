"""What a client of HTTP sends ahead. While a request is under way, nothing behind it is parsed: a request that is
parsed takes many times its bytes, and CPU time, before its turn has come. The bytes of one event of the loop wait as
they came; then nothing is read, and the kernel keeps the rest."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

HEAD_END: Final = b"\r\n\r\n"
BEFORE_HEAD_END: Final = len(b"GET / HTTP/1.1")  # of the shortest request: steps are not shorter


def step_end(data: bytes, at: int, body_left: int) -> int:
    """Where a step of the parser ends that begins at `at`: behind the rest of a body, else behind the next end of a
    head (or of a chunked body) that has another one behind it. So at most one further request is parsed behind the
    end of one. The parser alone says what a request is: a step may end anywhere."""
    if body_left:
        return min(len(data), at + body_left)
    found = data.find(HEAD_END, at + BEFORE_HEAD_END)
    end = found + len(HEAD_END)
    return len(data) if found < 0 or data.find(HEAD_END, end) < 0 else end


class HeldFlow(FlowControl):
    """uvicorn's, that reads nothing while bytes are held: an application that waits for its client reads on
    otherwise."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.is_held:
            super().resume_reading()
