"""One seed through all worlds."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.log_run import run_log, run_once
from tests.sim.planted import planted_by_name
from tests.sim.world import run_shards

_FAST = Path("/dev/shm")


@dataclass(slots=True)
class Result:
    """`findings`: (sentence, the events before it). `digest`: of everything that happened."""

    seed: int
    digest: str
    steps: int
    cpu_s: float
    findings: list[tuple[str, list[str]]]
    faults: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)


def run_seed(seed: int, planted: str = "", *, verbose: bool = False) -> Result:
    """Raises OSError when the library of the log was not built (`make -C native sim`)."""
    began = time.process_time()
    root = (_FAST if os.access(_FAST, os.W_OK) else Path(tempfile.gettempdir())) / f"shardd-sim-{os.getpid()}"
    outcomes = [
        run_shards(seed, planted_by_name(planted), verbose=verbose),
        run_log(seed, root, planted_by_name(planted), verbose=verbose),
        run_once(seed, root, planted_by_name(planted), verbose=verbose),
    ]
    result = Result(
        seed=seed,
        digest=hashlib.sha256("".join(each.digest for each in outcomes).encode()).hexdigest()[:16],
        steps=sum(each.steps for each in outcomes),
        cpu_s=time.process_time() - began,
        findings=[(each.finding, each.last) for each in outcomes if each.finding is not None],
    )
    for each in outcomes:
        result.faults.update(each.faults)
        result.done.update(each.done)
    return result
