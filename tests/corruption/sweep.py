"""`make corrupt-sweep`: every byte of a small partition's files, and of the metadata, is damaged in several ways; each
time everything is read through a real worker. No wrong message may be served, and all but the damaged record must be.

    python -m tests.corruption.sweep [--step N]     every N-th byte only
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardd.log.blocks import BLOCK_BYTES, Blocks, Codec
from shardd.metadata import FILE_NAME
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state
from shardd.metadata.snapshot import snapshot_path, write_snapshot
from shardd.metadata.state import State
from tests.corruption.stage import MESSAGES, Stage, judge
from tests.crash import faults
from tests.support import wire

MASKS: Final = (0x01, 0x80, 0xFF)
CODECS: Final = (Codec("gzip", 6), Codec("lz4", 1), Codec("zstd", 3))
FINDINGS_SHOWN: Final = 20
MEMORY: Final = Path("/dev/shm")  # thousands of syncs


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged file of the partition. `lost`: the messages that it costs; `torn`: it is the last one."""

    name: str
    position: int
    mask: int
    while_open: bool
    lost: tuple[int, ...]
    torn: bool

    def __str__(self) -> str:
        when = "open" if self.while_open else "closed"
        return f"{self.name} byte {self.position} ^ {self.mask:#04x} ({when})"


def flipped(content: bytes, position: int, mask: int) -> bytes:
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


def cases(stage: Stage, step: int) -> Iterator[Case]:
    """Every byte of every log, compressed log, index and manifest, the masks in turn, both times; every `step`-th of
    them."""
    number = 0
    for name, content in sorted(stage.files.items()):
        if not name.endswith((".log", ".blocks", ".index", ".manifest")):
            continue
        for position in range(len(content)):
            for while_open in (False, True):
                number += 1
                if number % step == 0:
                    mask = MASKS[number % len(MASKS)]
                    lost = messages_at(stage, name, position, mask)
                    torn = lost == (MESSAGES - 1,) and not while_open
                    yield Case(name, position, mask, while_open, lost, torn)


def messages_at(stage: Stage, name: str, position: int, mask: int) -> tuple[int, ...]:
    """Offsets of exactly those messages that this flip costs."""
    if name.endswith(".log"):
        return (message_at(stage, name, position),)
    return lost_with_block(stage, name, flipped(stage.files[name], position, mask)) if name.endswith(".blocks") else ()


def lost_with_block(stage: Stage, name: str, content: bytes) -> tuple[int, ...]:
    """A segment here is one block: it gives all of its messages or none. A codec may have bits that say nothing (of
    the head of a zstd frame; behind the end of a deflate stream): the block still gives its bytes, and costs nothing.
    So does the head of the file, which says nothing that is not said elsewhere."""
    start = int(name[:20])
    offsets = tuple(range(start, stage.starts[stage.starts.index(start) + 1]))
    plain = b"".join(stage.messages[each].raw for each in offsets)
    assert len(plain) <= BLOCK_BYTES
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return () if Blocks(file.fileno(), len(plain)).block(0) == plain else offsets


def message_at(stage: Stage, name: str, position: int) -> int:
    """Offset of the message that this byte of a log belongs to."""
    offset = int(name[:20])
    while position >= len(stage.messages[offset].raw):
        position -= len(stage.messages[offset].raw)
        offset += 1
    return offset


def run_case(stage: Stage, case: Case) -> list[str]:
    stage.put({case.name: flipped(stage.files[case.name], case.position, case.mask)}, while_open=case.while_open)
    try:
        return judge(stage, case.lost, torn=case.torn)
    except wire.StatusError as refusal:
        return [str(refusal)]


def canaries(stage: Stage) -> list[str]:
    """Faults that the sweep has to report; those that it did not."""
    name = f"{0:020}.log"
    victim = stage.messages[1]
    forged = faults.record(victim, 1, victim.payload[:-1] + b"!", victim.timestamp_us)
    content = stage.files[name]
    at = len(stage.messages[0].raw)
    missed = []
    stage.put({name: content[:at] + forged + content[at + len(forged) :]}, while_open=False)
    if not any("wrong bytes" in each for each in judge(stage, [], torn=False)):
        missed.append("a changed payload with a right checksum")
    stage.put({name: flipped(content, at + 70, 1)}, while_open=False)
    if not any("lost" in each for each in judge(stage, [], torn=False)):
        missed.append("a message that is not served")
    return missed


def compressed_canaries(stage: Stage) -> list[str]:
    """The same for blocks: a file with other messages, right in itself; a block whose messages nobody gets."""
    first, second = (f"{start:020}.blocks" for start in stage.starts[:2])
    missed = []
    stage.put({first: stage.files[second]}, while_open=False)
    if not judge(stage, [], torn=False):
        missed.append("the blocks of another segment")
    stage.put({first: flipped(stage.files[first], len(stage.files[first]) - 1, 1)}, while_open=False)
    if not any("lost" in each for each in judge(stage, [], torn=False)):
        missed.append("a block that is damaged")
    return missed


def metadata_findings(directory: Path, step: int) -> tuple[int, list[str]]:
    """Every byte of a metadata log and of its snapshot: the state that was, the one before the last record, or a
    refusal."""
    path = directory / FILE_NAME
    whole, log = load_state(path), path.read_bytes()
    findings: list[str] = []
    count = 0
    path.write_bytes(log[:-1])  # a torn last record: the state without it
    before = load_state(path)
    path.write_bytes(log)
    write_snapshot(snapshot_path(path), before, [])
    for victim, states in ((path, (whole, before)), (snapshot_path(path), (whole,))):
        content = victim.read_bytes()
        for position in range(0, len(content), step):
            mask = MASKS[position % len(MASKS)]
            count += 1
            victim.write_bytes(flipped(content, position, mask))
            if not _is_refused_or(path, states):
                findings.append(f"{victim.name} byte {position} ^ {mask:#04x}: another state")
        victim.write_bytes(content)
    assert load_state(path) == whole
    return count, findings


def _is_refused_or(path: Path, states: tuple[State, ...]) -> bool:
    try:
        return load_state(path) in states
    except LogError:
        return True


def sweep(data: Path, step: int) -> list[str]:
    """Prints its figures; the findings."""
    began_s = time.monotonic()
    findings: list[str] = []
    counted: Counter[str] = Counter()
    with Stage(data) as stage:
        findings += [f"canary not reported: {each}" for each in canaries(stage)]
        for case in cases(stage, step):
            counted[case.name.rpartition(".")[2]] += 1
            findings += [f"{case}: {each}" for each in run_case(stage, case)]
    for codec in CODECS:
        with Stage(data.with_name(codec.name), codec=codec) as stage:
            findings += [f"canary not reported: {each}" for each in compressed_canaries(stage)]
            for case in cases(stage, step):
                if case.name.endswith((".blocks", ".manifest")):
                    counted[case.name.rpartition(".")[2]] += 1
                    findings += [f"{codec.name}, {case}: {each}" for each in run_case(stage, case)]
    count, more = metadata_findings(data, step)
    counted["metadata"] = count
    seconds = time.monotonic() - began_s
    figures = ", ".join(f"{kind} {count}" for kind, count in sorted(counted.items()))
    print(f"corrupt-sweep: {sum(counted.values())} cases ({figures}), {len(findings + more)} findings, {seconds:.0f} s")
    return findings + more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1, help="every so many cases only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardd-sweep-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        findings = sweep(Path(directory) / "data", arguments.step)
    for each in findings[:FINDINGS_SHOWN]:
        print(each)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
