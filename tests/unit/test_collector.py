"""Garbage collection of a worker in pieces (shardd.runtime.collector)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


def told_by(program: str) -> str:
    """What a process of its own prints: the collector is one of a process."""
    head = """
        import asyncio, gc, sys, time, weakref
        from shardd.runtime import collector
        from shardd.runtime.collector import Collector

        class Node: pass

        def cycle():
            one, other = Node(), Node()
            one.other, other.other = other, one
            return one
    """
    source = textwrap.dedent(head) + textwrap.dedent(program)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_collector_looks_only_at_what_is_new() -> None:
    """However much there is: what it looked at is the survivors and the garbage of each of its runs."""
    program = """
        kept = [[number] for number in range(300_000)]
        loop = asyncio.new_event_loop()
        Collector(loop).start()
        seen = []
        def count(phase, facts):
            if phase == "start" and facts["generation"] == 2:
                seen.append(sum(len(gc.get_objects(generation)) for generation in range(3)))
        gc.callbacks.insert(0, count)
        more = [[number] for number in range(300_000)]
        print(len(seen) > 3, max(seen) < 30_000)
    """
    assert told_by(program) == "True True"


def test_young_garbage_goes_as_ever() -> None:
    program = """
        Collector(asyncio.new_event_loop()).start()
        gone = weakref.ref(cycle())
        kept = [[number] for number in range(50_000)]
        print(gone() is None)
    """
    assert told_by(program) == "True"


def test_old_garbage_goes_when_there_is_twice_as_much() -> None:
    program = """
        collector.GROWTH_BLOCKS_MIN = 1000
        loop = asyncio.new_event_loop()
        Collector(loop).start()
        old = cycle()
        gone = weakref.ref(old)
        kept = [[number] for number in range(50_000)]
        frozen = gc.is_tracked(old) and not any(each is old for each in gc.get_objects())
        del old
        gc.collect()
        stays = gone() is not None
        while not gone() is None and len(kept) < 5_000_000:
            kept += [[number] for number in range(50_000)]
            loop.call_soon(loop.stop)
            loop.run_forever()
        print(frozen, stays, gone() is None)
    """
    assert told_by(program) == "True True True"


def test_old_garbage_of_few_blocks_goes_when_its_time_has_come() -> None:
    program = """
        loop = asyncio.new_event_loop()
        time.monotonic = lambda: 0.0
        kept = Collector(loop, all_after_s=60.0)
        kept.start()
        old = cycle()
        gone = weakref.ref(old)
        more = [[number] for number in range(50_000)]
        del old
        loop.run_until_complete(asyncio.sleep(0))
        time.monotonic = lambda: 60.0
        stays = gone() is not None
        more += [[number] for number in range(50_000)]
        loop.run_until_complete(asyncio.sleep(0))
        print(stays, gone() is None)
    """
    assert told_by(program) == "True True"
