"""What a recovery has found out about a partition (recovery.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardd.engine import SegmentInfo, WithheldRange


@dataclass(slots=True)
class Recovered:
    """What `Engine.partition_open` needs.

    `segments`: (start offset, log bytes, records, first timestamp us, last timestamp us, offsets without a record),
    ascending, the last one is active. `damaged`: (start offset, end offset exclusive, isolated); where two overlap the
    first one counts.
    `groups`: numbers of those that have a stored offset. `state`: 0, or the status that sends get from the start.
    `notes`: sentences for the operator, to be logged once.
    `unsealed`: start offsets of segments before the active one whose manifests lack something (sealing.py).
    `scanned_bytes`: what was read of logs. `durable_end`: offsets below it were on the device when the last checkpoint
    was written; 0 without one. `log_start`: below it nothing is served; 0: at the first segment.
    `torn`: bytes that are no records were cut off.
    `waiting`: the last entries of the active index, which its file does not have (there was no room for them).
    `known_ids`: of the newest messages, where ids are compared (recent_ids.py).
    """

    segments: list[SegmentInfo] = field(default_factory=list)
    damaged: list[WithheldRange] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    state: int = 0
    notes: list[str] = field(default_factory=list)
    unsealed: list[int] = field(default_factory=list)
    scanned_bytes: int = field(default=0, compare=False)
    durable_end: int = field(default=0, compare=False)
    log_start: int = 0
    torn: bool = field(default=False, compare=False)
    waiting: bytes = field(default=b"", compare=False)
    known_ids: bytes = field(default=b"", compare=False)
