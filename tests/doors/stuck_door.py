"""A door for tests that serves and then does what its argument says: `loops`, `blocks`, `stops`, or is `busy`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from shardd.doors.door import Door
from shardd.doors.process import run_door

STEPS = 150
STEP_S = 0.1  # 15 s of steps that are all ready at once: longer than any loop may stand still


def step() -> None:
    until = time.monotonic() + STEP_S
    while time.monotonic() < until:
        pass


async def serve(door: Door) -> None:
    door.ready()
    await asyncio.sleep(0.1)
    if sys.argv[1] == "loops":
        while True:
            pass
    if sys.argv[1] == "blocks":
        time.sleep(3600.0)  # noqa: ASYNC251  # the blocked call
    if sys.argv[1] == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    for _ in range(STEPS):
        loop.call_soon(step)
    loop.call_soon(done.set)
    await done.wait()
    print("was busy", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_door(serve)
