"""`python -m tests.spark.cuts [--rounds N] [--seed S]`: the network between sink and server is cut for 2 to 30 s, in
all ways, while batches are written with each of the semantics. Rows of every batch have to be there: at least once,
with `stable-ids` a repeated one under the same id, with `idempotent` exactly once. One round of 2 s is a test."""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic import writers as sink
from shardd.spark.sinks.topic.writers import Work
from tests.spark.proxies import NetworkProxy
from tests.support import wire
from tests.support.server import Server

SEMANTICS = ("at-least-once", "stable-ids", "idempotent")
PARTITIONS = 2
PARTS = 40  # of a task
PART_ROWS = 100
TIMEOUT_MS = 1500  # shorter than a cut: an answer that does not come is not waited for


class Round(msgspec.Struct, frozen=True):
    """`cuts`: kind and seconds of each; one in each batch."""

    semantics: str
    cuts: tuple[tuple[str, float], ...]


class Outcome(msgspec.Struct):
    rows: int = 0
    repeated: int = 0
    findings: list[str] = []


def play(server: Server, stream: str, played: Round) -> Outcome:
    """Writes a batch for each cut, which begins in the middle of it."""
    with NetworkProxy(server.address) as proxy:
        given = {"servers": proxy.address, "topic": f"{stream}/out", "createTopic": str(PARTITIONS)}
        given |= {"username": "iggy", "password": "iggy", "order": "source", "batchBytes": "4 KiB"}
        given |= {"semantics": played.semantics, "requestTimeoutMs": str(TIMEOUT_MS)}
        options = topic_options.parse(given, streaming=True)
        query = f"query {stream}"
        for batch, (kind, seconds) in enumerate(played.cuts):
            cutter = threading.Thread(target=proxy.cut, args=(kind, seconds), daemon=True)
            work = Work(query, "run", batch)
            done = sink.write(options, work, _parts(batch, cutter))
            sink.commit(options, [done], batch)
            cutter.join()
        assert proxy.cuts == len(played.cuts)
    return judge(server, stream, played)


def _parts(batch: int, cutter: threading.Thread) -> Iterator[pa.RecordBatch]:
    for part in range(PARTS):
        if part == PARTS // 2:
            cutter.start()
        first = (batch * PARTS + part) * PART_ROWS
        yield pa.RecordBatch.from_pydict({"value": [str(n) for n in range(first, first + PART_ROWS)]})


def judge(server: Server, stream: str, played: Round) -> Outcome:
    with wire.connect(server.address) as connection:
        found = [each for partition in range(PARTITIONS) for each in connection.read_all(stream, "out", partition)]
    rows = len(played.cuts) * PARTS * PART_ROWS
    return judged(played.semantics, rows, [(int(each.payload), each.id) for each in found])


def judged(semantics: str, rows: int, found: list[tuple[int, bytes]]) -> Outcome:
    """`found`: row and id of each message."""
    counts = Counter(row for row, _ in found)
    made = Outcome(rows, len(found) - len(counts), [])
    if counts.keys() != set(range(rows)):
        made.findings.append(f"{len(set(range(rows)) - counts.keys())} rows are missing")
    if semantics == "stable-ids" and len(set(found)) != rows:
        made.findings.append("a repeated row has another id")
    if semantics == "idempotent" and made.repeated:
        made.findings.append(f"{made.repeated} rows are stored twice")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    chance = random.Random(options.seed)
    total, failed = Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="shardd-cuts-") as name, Server(Path(name) / "data") as server:
        for number in range(options.rounds):
            cuts = tuple((kind, round(chance.uniform(2, 30), 1)) for kind in chance.sample(NetworkProxy.KINDS, 3))
            played = Round(SEMANTICS[number % 3], cuts)
            began = time.monotonic()
            made = play(server, f"s{number}", played)
            total["cuts"] += len(cuts)
            total["rows"] += made.rows
            failed += len(made.findings)
            text = ", ".join(f"{kind} {seconds:g} s" for kind, seconds in cuts)
            print(f"{played.semantics:<14} {text}: {made.repeated} repeated, {time.monotonic() - began:.0f} s")
            for each in made.findings:
                print(f"FINDING: {each}")
    print(f"spark-cuts: {options.rounds} rounds, seed {options.seed}: {total['cuts']} cuts, {total['rows']:,} rows,")
    print(f"{failed} findings")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
