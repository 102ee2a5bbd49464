"""What lanes of kills have done and found (clean_kills.py), and how that is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.support.server import io_engine_environment

ENGINES: Final = ("io_uring", "epoll")
RING_KILLS: Final = 60  # an eighth of the steps are entries of a ring: with so many kills one of them comes


def engines_of_this_run() -> tuple[str, ...]:
    """Both, but for a test run that asks for one."""
    return tuple(io_engine_environment().values()) or ENGINES


@dataclass
class Figures:
    """Of all lanes."""

    killed: Counter[str] = field(default_factory=Counter)  # by step
    on_ring: Counter[str] = field(default_factory=Counter)  # of these, at an entry of a ring
    engines: Counter[str] = field(default_factory=Counter)  # kills
    did_not_come: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)  # lanes that ended before all was done and judged, and why

    def add(self, other: Figures) -> None:
        self.killed += other.killed
        self.on_ring += other.on_ring
        self.engines += other.engines
        self.did_not_come += other.did_not_come
        self.counts += other.counts
        self.findings += other.findings
        self.cut += other.cut

    def judge_ring(self) -> None:
        """So many kills on io_uring, and none of them at its ring: then nobody looks at what is submitted."""
        if self.engines["io_uring"] >= RING_KILLS and self.on_ring.total() == 0:
            self.findings.append(f"none of {self.engines['io_uring']} kills on io_uring came at an entry of its ring")

    def __str__(self) -> str:
        counts = self.counts
        engines = ", ".join(f"{count} on {name}" for name, count in sorted(self.engines.items()))
        return (
            f"{self.killed.total()} kills at {len(self.killed)} steps ({engines}; {self.on_ring.total()} at an entry "
            f"of a ring), {counts['starts']} starts; "
            f"{counts['acknowledged']:,} messages acknowledged, {counts['polls']:,} polls with {counts['served']:,} "
            f"messages judged, {counts['digests']} digests compared ({counts['compressed']} of compressed segments); "
            f"{counts['archived']:,} messages in archives; {counts['swept']} indexes, manifests without a log swept; "
            f"{counts['duplicates']:,} batches sent again, {counts['epochs']} epochs; "
            f"{self.did_not_come.total()} steps did not come; {len(self.findings)} findings"
        )


def report(name: str, figures: Figures, minutes: float, seed: int) -> tuple[list[str], int]:
    """Lines and exit status: 0 only when every kill was done, everything was judged and nothing was found."""
    figures.judge_ring()
    ring = {about: f" ({count} at an entry of a ring)" for about, count in (+figures.on_ring).items()}
    lines = [f"{count:5} {about}{ring.get(about, '')}" for about, count in sorted(figures.killed.items())]
    lines += [f"      did not come {count} times: {about}" for about, count in sorted(figures.did_not_come.items())]
    lines += [f"FINDING {finding}" for finding in figures.findings[:20]]
    lines += [f"CUT SHORT {why}" for why in figures.cut]
    verdict = "cut short, which proves nothing" if figures.cut else "whole"
    lines.append(f"{name}: {verdict}: {figures}; {minutes:.1f} minutes; seed {seed}")
    return lines, 1 if figures.findings or figures.cut else 0
