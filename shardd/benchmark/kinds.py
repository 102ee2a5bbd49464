"""Kinds of benchmarks: who sends, who reads, and what they share."""

from __future__ import annotations

from typing import Final, NamedTuple

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
BOTH: Final = "producing_consumer"


class Kind(NamedTuple):
    """`title`: in identifiers. `streams`: by default; 0: as many as `of_streams` says. `shared`: one budget for all of
    a side. `actors`: of which kinds. `partitions`, `groups`: by default, None where the kind has no such option."""

    name: str
    alias: str
    title: str
    about: str
    actors: tuple[str, ...]
    streams: int = 0
    partitions: int | None = None
    groups: int | None = None
    shared: bool = False

    @property
    def report_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def sends(self) -> bool:
        return PRODUCER in self.actors or BOTH in self.actors

    @property
    def polls(self) -> bool:
        return CONSUMER in self.actors or BOTH in self.actors

    @property
    def needs_data(self) -> bool:
        return not self.sends

    @property
    def amplifies(self) -> bool:
        """Producers and consumers are others: consumers may be faster."""
        return len(self.actors) == 2


KINDS: Final = (
    Kind("pinned-producer", "pp", "Pinned Producer", "Each producer has its stream.", (PRODUCER,)),
    Kind("pinned-consumer", "pc", "Pinned Consumer", "Each consumer reads its stream.", (CONSUMER,)),
    Kind(
        "pinned-producer-and-consumer",
        "ppc",
        "Pinned Producer And Consumer",
        "Streams of one partition, written and read at once.",
        (PRODUCER, CONSUMER),
        partitions=1,
    ),
    Kind(
        "balanced-producer",
        "bp",
        "Balanced Producer",
        "The server picks the partition of each batch.",
        (PRODUCER,),
        1,
        24,
        shared=True,
    ),
    Kind(
        "balanced-consumer-group",
        "bcg",
        "Balanced Consumer Group",
        "Consumer groups read what is there.",
        (CONSUMER,),
        1,
        None,
        1,
        shared=True,
    ),
    Kind(
        "balanced-producer-and-consumer-group",
        "bpcg",
        "Balanced Producer And Consumer Group",
        "Producers and groups at once.",
        (PRODUCER, CONSUMER),
        1,
        24,
        1,
        shared=True,
    ),
    Kind(
        "end-to-end-producing-consumer",
        "e2e",
        "End To End Producing Consumer",
        "Each actor sends a batch and reads it.",
        (BOTH,),
        8,
    ),
    Kind(
        "end-to-end-producing-consumer-group",
        "e2ecg",
        "End To End Producing Consumer Group",
        "Actors send, and read as members of groups.",
        (BOTH,),
        1,
        24,
        1,
        shared=True,
    ),
)
BY_NAME: Final = {kind.name: kind for kind in KINDS}
