"""`python -m bench.headline`: the figures of README.md, by `shardd bench --against` on this machine.

Measures shardd beside the bare server in C, Redis Streams and NATS JetStream with the same load engine in interleaved
rounds, writes docs/headline.svg and docs/headline.json, and the part of README.md between its two marks. `--draw` makes
picture and text again from docs/headline.json.
"""

from __future__ import annotations

import argparse
import html
import json
import statistics
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from shardd.benchmark import against
from shardd.benchmark.charts import COLORS, number
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.options import Options, Output, Span
from shardd.benchmark.table import facts_of

ROOT = Path(__file__).parents[1]
PICTURE, RAW, README = ROOT / "docs" / "headline.svg", ROOT / "docs" / "headline.json", ROOT / "README.md"
BEGIN, END = "<!-- headline: python -m bench.headline -->", "<!-- end of headline -->"
OTHERS = ("floor", "redis", "nats")
NAMES = {"shardd": "shardd", "floor": "bare C server", "redis": "Redis Streams", "nats": "NATS JetStream"}
PANEL_WIDTH, PANEL_HEIGHT, BAR_HEIGHT, NAMES_WIDTH = 430, 150, 18, 104
PICTURE_BYTES_MAX = 200_000


def _shape(kind: str, batch: int, payload_bytes: int, batches: int, durability: str = "written") -> Options:
    both = len(BY_NAME[kind].actors) == 2
    producers = 4 if both else 8
    return Options(
        BY_NAME[kind],
        streams=producers,
        partitions=1,
        producers=producers,
        consumers=4 if both else 0,
        groups=1,
        own=True,
        nodelay=True,
        warmup_us=300_000,
        batch=Span(batch, batch),
        message_size=Span(payload_bytes, payload_bytes),
        batches=batches,
        durability=durability,
    )


SHAPES = {
    "10 x 100 B": _shape("pinned-producer", 10, 100, 8000),
    "100 x 1000 B": _shape("pinned-producer", 100, 1000, 1500),
    "with consumers, 100 x 1000 B": _shape("pinned-producer-and-consumer", 100, 1000, 1000),
    "synced first, 10 x 100 B": _shape("pinned-producer", 10, 100, 300, "durable"),
}
"""By title."""


def measure(rounds: int, share: float) -> dict[str, Any]:
    """What is kept in docs/headline.json. `share`: of the batches of a shape."""
    found: dict[str, Any] = {"shapes": {}}
    for title, options in SHAPES.items():
        chosen = replace(options, batches=max(10, round(options.batches * share)))
        print(title, file=sys.stderr)
        duel = against.run(chosen, Output(), OTHERS, rounds, lambda line: print(f"  {line}", file=sys.stderr))
        told = against.as_json(duel)
        found["shapes"][title] = {name: told[name] for name in ("rounds", "servers", "verdicts")}
        facts = facts_of(duel.first.reports[-1])
        found["facts"] = {name: value for name, value in facts if name in ("machine", "kernel", "time")}
    found["facts"]["commit"] = report.machine(Path("/"))["commit"]
    return found


def median_of(shape: dict[str, Any], label: str, figure: str) -> float:
    rounds = next(each["rounds"] for each in shape["servers"] if each["label"] == label)
    return float(statistics.median(each[figure] for each in rounds))


def verdict_of(shape: dict[str, Any], label: str, figure: str) -> dict[str, Any]:
    return next(each for each in shape["verdicts"] if (each["server"], each["figure"]) == (label, figure))


def _panel(title: str, shape: dict[str, Any], figure: str, unit: str, x: int, y: int) -> str:
    values = [(label, median_of(shape, label, figure)) for label in ("shardd", *OTHERS)]
    top = max(value for _, value in values) or 1.0
    space = PANEL_WIDTH - NAMES_WIDTH - 130
    parts = [f'<text x="{x}" y="{y + 14}" class="t">{html.escape(title)}</text>']
    for at, (label, value) in enumerate(values):
        line = y + 28 + at * (BAR_HEIGHT + 8)
        parts.append(
            f'<text x="{x + NAMES_WIDTH - 6}" y="{line + 13}" text-anchor="end">{NAMES[label]}</text>'
            f'<rect x="{x + NAMES_WIDTH}" y="{line}" width="{max(1.0, value / top * space):.1f}" '
            f'height="{BAR_HEIGHT}" rx="2" fill="{COLORS[at]}"/>'
            f'<text x="{x + NAMES_WIDTH + value / top * space + 6:.1f}" y="{line + 13}">{number(value)} {unit}</text>'
        )
    return "".join(parts)


def picture(found: dict[str, Any]) -> str:
    """Left: messages a second of producers; right: p99 of their latency. One row for each shape."""
    rows = list(found["shapes"].items())
    width, height = 2 * PANEL_WIDTH + 40, len(rows) * PANEL_HEIGHT + 20
    parts = []
    for at, (title, shape) in enumerate(rows):
        y = 10 + at * PANEL_HEIGHT
        parts.append(_panel(f"sends, {title}", shape, "producers: messages/s", "messages/s", 10, y))
        parts.append(_panel("p99 of a request", shape, "producers: p99 ms", "ms", PANEL_WIDTH + 30, y))
    style = "text{font:12px system-ui,sans-serif;fill:#57606a}.t{font-weight:600;fill:#1c2128}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def text(found: dict[str, Any]) -> str:
    """The part of README.md."""
    facts = found["facts"]
    rows = ["| sends | shardd, messages/s | bare C server | Redis Streams | NATS JetStream |", "|---|---|---|---|---|"]
    for title, shape in found["shapes"].items():
        cells = [f"{median_of(shape, 'shardd', 'producers: messages/s'):,.0f}"]
        for label in OTHERS:
            found_verdict = verdict_of(shape, label, "producers: messages/s")
            noise = " ~" if found_verdict["verdict"].startswith(("within", "rounds", "too few")) else ""
            cells.append(f"{found_verdict['other']:,.0f}, x{1 / found_verdict['ratio']:.2f}{noise}")
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    rounds = next(iter(found["shapes"].values()))["rounds"]
    machine = f"{facts['machine']}, {facts['kernel']}, commit {facts['commit']}"
    return (
        f"{BEGIN}\n![Messages a second and p99 beside other servers](docs/headline.svg)\n\n"
        + "\n".join(rows)
        + "\n\n"
        + _wrapped(
            f"Medians of {rounds} interleaved rounds ({machine}), clients on the same CPUs. "
            '"x": so many times as fast, "~" by less than shardd differs from itself; 8 producers (4 with consumers). '
            "All but the bare one write before they answer and sync each second; in the last row all sync first. "
            "`make headline` does it here. All lines: [docs/benchmarks.md](docs/benchmarks.md); any server: "
            "[`shardd bench`](docs/bench.md)."
        )
        + f"\n{END}"
    )


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)


def write(found: dict[str, Any]) -> None:
    drawn = picture(found)
    if len(drawn) > PICTURE_BYTES_MAX:
        raise ValueError("the picture is larger than 200 KB")
    PICTURE.write_text(drawn)
    RAW.write_text(json.dumps(found, indent=1) + "\n")
    old = README.read_text()
    before, _, rest = old.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"README.md has no {BEGIN} ... {END}")
    README.write_text(before + text(found) + after)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.headline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--share", type=float, default=1.0, help="of the batches of each shape; 0.1: just a look")
    parser.add_argument("--draw", action="store_true", help="from docs/headline.json, without measuring")
    options = parser.parse_args(words)
    write(json.loads(RAW.read_text()) if options.draw else measure(options.rounds, options.share))
    print(f"{PICTURE} and README.md are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
