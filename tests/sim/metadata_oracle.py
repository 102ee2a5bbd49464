"""What must hold for the metadata, judged from outside: every record that any shard applies passes through here."""

from __future__ import annotations

from shardd.metadata import Record, State
from shardd.protocol.errors import Status
from tests.sim.findings import Trace

UNKNOWN = {Status.ERROR, Status.CANNOT_SYNC_FILE, Status.DISCONNECTED, Status.SHARD_COMMUNICATION_ERROR}


class MetadataOracle:
    """One history for the whole run, over all crashes: a record that was applied anywhere was synced before."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.states: dict[int, State] = {0: State()}
        self._submissions: dict[int, int] = {}  # number -> index
        self._refused: set[int] = set()
        self._incarnations: set[int] = set()
        self.acknowledged_index = 0
        self.answers = 0

    def applied(self, shard: int, old: State, new: State, record: Record) -> None:
        """Subscribed to the metadata of every shard."""
        if new.index != old.index + 1:
            self._trace.report(f"shard {shard} applies record {new.index} after record {old.index}")
        known = self.states.get(new.index)
        if known is None:
            self._first(new, record)
        elif known != new:
            self._trace.report(f"shard {shard} has another record {new.index} than was applied before")

    def _first(self, new: State, record: Record) -> None:
        self.states[new.index] = new
        number = record.submission
        if number in self._submissions:
            self._trace.report(f"submission {number} is record {self._submissions[number]} and record {new.index}")
        if number in self._refused:
            self._trace.report(f"submission {number} was refused and is record {new.index}")
        self._submissions[number] = new.index
        for incarnation in _incarnations(new) - _incarnations(self.states.get(new.index - 1, State())):
            if incarnation in self._incarnations:
                self._trace.report(f"incarnation {incarnation} is given out again by record {new.index}")
            self._incarnations.add(incarnation)

    def recovered(self, shard: int, state: State, submissions: dict[int, int]) -> None:
        """A shard serves from now on. Shard 0 may have found a last record that nobody has seen yet; it knows the
        `submissions` (number -> index) of its log."""
        for number, index in submissions.items():
            if self._submissions.setdefault(number, index) != index:
                self._trace.report(f"submission {number} is record {self._submissions[number]} and record {index}")
        if state.index < self.acknowledged_index:
            self._trace.report(
                f"shard {shard} starts with record {state.index}, but record {self.acknowledged_index} is acknowledged"
            )
        known = self.states.get(state.index)
        if known is None:
            before = max(self.states)
            if shard != 0 or state.index != before + 1:
                self._trace.report(f"shard {shard} starts with record {state.index}, the last one known is {before}")
            self.states[state.index] = state
        elif known != state:
            self._trace.report(f"shard {shard} recovers another state than it had at record {state.index}")

    def answered(
        self, status: int, number: int, serving: dict[int, State], followed: dict[int, int], *, again: bool
    ) -> None:
        """A client has its answer. `serving`: the states of all live shards; `followed`: the last record that each has
        followed. `again`: it had sent this before, to a shard that died; that one may be done after a refusal."""
        self.answers += 1
        if status != Status.OK:
            if status not in UNKNOWN:
                if not again:
                    self._refused.add(number)
                if number in self._submissions:
                    self._trace.report(f"submission {number} is refused with {status} and was done")
            return
        index = self._submissions.get(number)
        if index is None:
            self._trace.report(f"submission {number} is answered, but no shard has applied it")
            return
        self.acknowledged_index = max(self.acknowledged_index, index)
        for shard, other in serving.items():
            if other.index < index:
                self._trace.report(f"record {index} is answered, but shard {shard} is at record {other.index}")
            elif followed[shard] < index:
                self._trace.report(f"record {index} is answered, but shard {shard} has followed {followed[shard]}")
            elif self.states[other.index].digest != other.digest:
                self._trace.report(f"shard {shard} has left the history at record {other.index}")

    def settled(self, states: dict[int, State], stored: State) -> None:
        """At the end: everybody has the same, and so has the disk."""
        for shard, state in states.items():
            if state != stored:
                self._trace.report(f"shard {shard} ends with record {state.index}, the disk with {stored.index}")
        if stored.index < self.acknowledged_index:
            self._trace.report(f"the disk ends with record {stored.index} of {self.acknowledged_index} acknowledged")


def _incarnations(state: State) -> set[int]:
    """Of everything but partitions, which one record makes many of."""
    found = {user.incarnation for user in state.users.values()}
    for stream in state.streams.values():
        found.add(stream.incarnation)
        for topic in stream.topics.values():
            found.add(topic.incarnation)
            found |= {group.incarnation for group in topic.groups.values()}
    return found
