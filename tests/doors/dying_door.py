"""A door for tests that dies as soon as it serves."""

from __future__ import annotations

from shardd.doors.door import Door
from shardd.doors.process import run_door


async def serve(door: Door) -> None:
    door.ready()
    raise RuntimeError("this door dies")


if __name__ == "__main__":
    run_door(serve)
