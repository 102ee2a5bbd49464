"""Which actor does what, and how much: the fields of native/load/load.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from shardd.benchmark.kinds import BOTH, CONSUMER, PRODUCER
from shardd.benchmark.options import PARTITIONINGS, BenchError, Options

RECORDS_MAX: Final = 5_000_000
"""Measured requests of a run: each is kept."""
SLOT_STOP, SLOT_START_NS, SLOT_READY, SLOT_SENDERS, SLOT_MESSAGES, SLOT_BYTES, SLOT_WORST_NS, SLOTS_FIXED = range(8)
_PLAN: Final = struct.Struct("<29Q")


@dataclass
class Actor:
    """`number` counts from 1 in each role. `stream` and `group` count from 1 too; group 0: none. `index`: among all."""

    role: str
    number: int
    stream: int
    group: int = 0
    send_slot: int = 0
    poll_slot: int = 0
    index: int = 0


@dataclass
class Plan:
    """`budgets`: of the slots behind the fixed ones, in batches or in bytes."""

    options: Options
    actors: list[Actor]
    budgets: list[int] = field(default_factory=list)

    @property
    def senders(self) -> int:
        return sum(map(self.sends, self.actors))

    def slots(self) -> list[int]:
        fixed = [0] * SLOTS_FIXED
        fixed[SLOT_SENDERS] = self.senders
        return [*fixed, *self.budgets]

    def sends(self, actor: Actor) -> bool:
        return actor.role == PRODUCER or (actor.role == BOTH and actor.number <= self.options.producers)

    def polls(self, actor: Actor) -> bool:
        grouped = self.options.kind.groups is not None
        return actor.role == CONSUMER or (
            actor.role == BOTH and (not grouped or actor.number <= self.options.consumers)
        )

    def _records_max(self) -> int:
        """Of one actor. Budgets in batches are within the bound already."""
        return RECORDS_MAX if self.options.total_data_bytes is None else RECORDS_MAX // len(self.actors)

    def packed(
        self,
        actor: Actor,
        fd: int,
        stream: int,
        topic: int,
        group: int,
        dialect: int = 0,
        session: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> bytes:
        """`stream`, `topic` and `group` are ids of the server."""
        options = self.options
        sends, polls = self.sends(actor), self.polls(actor)
        rate = 0 if options.rate_limit_bytes is None else max(1, options.rate_limit_bytes // len(self.actors))
        grouped = actor.group > 0
        chosen = options.partitioning or ("balanced" if options.partitions > 1 else "partition")
        fields = [fd, sends, polls, stream, topic, PARTITIONINGS.index(chosen), options.partitions]
        fields += [options.hot_percent, group + 1 if grouped else 0]
        fields += [*options.batch, *options.message_size]
        fields += [actor.send_slot, actor.poll_slot, options.total_data_bytes is not None]
        fields += [rate, 0 if actor.role == BOTH else int(rate * options.read_amplification)]
        fields += [options.kind.sends, sends and polls and not grouped]
        fields += [1 if polls else options.depth, options.open_loop and sends, self._records_max()]
        fields += [dialect, actor.index, *session]
        return _PLAN.pack(*map(int, fields))


def make_plan(options: Options) -> Plan:
    """BenchError when one run could not keep its records."""
    plan = Plan(options, list(_actors(options)))
    for side, does in (("send_slot", plan.sends), ("poll_slot", plan.polls)):
        actors = [actor for actor in plan.actors if does(actor)]
        for at, actor in enumerate(actors):
            if at == 0 or not options.kind.shared:
                plan.budgets.append(_budget(options, len(actors)))
            setattr(actor, side, SLOTS_FIXED + len(plan.budgets) - 1)
    if options.total_data_bytes is None and sum(plan.budgets) > RECORDS_MAX:
        raise BenchError(f"a run keeps each request, and at most {RECORDS_MAX:,}: let there be fewer batches")
    return plan


def _actors(options: Options) -> list[Actor]:
    kind = options.kind
    found: list[Actor] = []
    for role in kind.actors:
        both = max(options.producers, options.consumers) if kind.groups is not None else options.producers
        count = {PRODUCER: options.producers, CONSUMER: options.consumers, BOTH: both}[role]
        for number in range(1, count + 1):
            stream, group = 1 + (number - 1) % options.streams, 0
            if role != PRODUCER and kind.groups is not None:
                group = 1 + (number - 1) % options.groups
                stream = 1 + (group - 1) % options.streams
            found.append(Actor(role, number, stream, group, index=len(found)))
    return found


def _budget(options: Options, count: int) -> int:
    """Of one actor, or of all `count` of one side."""
    kind, shared = options.kind, options.kind.shared
    if options.total_data_bytes is not None:
        if shared:
            return options.total_data_bytes // (2 if kind.actors == (BOTH,) else 1)
        return max(1, options.total_data_bytes // options.actors)
    if shared:
        return options.batches * (options.producers if kind.sends else options.consumers)
    if len(kind.actors) == 2:
        return max(1, (options.producers + options.consumers) * options.batches // count)
    return options.batches
