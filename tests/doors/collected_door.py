"""A door for tests that keeps many objects while it serves, and says what its collections of garbage looked at."""

from __future__ import annotations

import asyncio
import gc
import sys
import time

from shardd.doors.door import Door
from shardd.doors.process import run_door

KEPT = 100_000
AT_ONCE = 1_000  # objects made in a turn of the loop


async def serve(door: Door) -> None:
    door.ready()
    seen, pauses_s = list[int](), list[float]()

    def collected(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            pauses_s.append(-time.thread_time())
            seen.append(sum(len(gc.get_objects(generation)) for generation in range(facts["generation"] + 1)))
        else:
            pauses_s[-1] += time.thread_time()

    kept = list[list[int]]()
    for round_ in range(2):  # in the second one there is as much as a large server has
        if round_ == 1:
            gc.callbacks.insert(0, collected)
        for at in range(0, KEPT, AT_ONCE):
            kept += [[number] for number in range(at, at + AT_ONCE)]
            await asyncio.sleep(0)
    gc.callbacks.remove(collected)
    longest_ms = max(pauses_s) * 1000
    print(f"collections {len(seen)}, objects {max(seen)}, longest {longest_ms:.1f} ms", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    gc.disable()  # as shardd.doors.start does
    run_door(serve)
