"""The bus between shards of a test: real sockets and keys; the test is the supervisor that introduces and reports."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from shardd.client.closing import Closing
from shardd.runtime.bus import Bus
from shardd.runtime.bus_sockets import TrustedSockets
from shardd.runtime.trust import Trust, TrustInheritance
from shardd.server.introductions import Introductions, make_private_listeners


class BusPlace(msgspec.Struct, frozen=True):
    """What a process needs to be a shard; travels as JSON, the descriptors are inherited."""

    shard: int
    shards: int
    trust: TrustInheritance

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def bus_at(place: BusPlace) -> tuple[Bus, Trust]:
    trust = Trust(place.trust)
    sockets = TrustedSockets(place.trust, trust, place.shards, hear=lambda: None)
    return Bus(place.shard, place.shards, sockets), trust


def bus_of_text(text: str) -> Bus:
    """In a process of its own."""
    return bus_at(msgspec.json.decode(text, type=BusPlace))[0]


class BusPeers(Closing):
    """A context manager. A bus that is made for a shard again belongs to its next process: `ended` comes before."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._trusts: dict[int, Trust] = {}
        self._buses: list[Bus] = []
        with tempfile.TemporaryDirectory() as directory:
            self.introductions = Introductions(make_private_listeners(Path(directory), shards))

    def close(self) -> None:
        self.introductions.close()

    def place(self, shard: int) -> BusPlace:
        return BusPlace(shard, self.shards, self.introductions.inheritance(shard))

    def bus(self, shard: int) -> Bus:
        bus, self._trusts[shard] = bus_at(self.place(shard))
        self._buses.append(bus)
        return bus

    def another_bus(self, place: BusPlace) -> Bus:
        """Of somebody who has got hold of a place and its keys; nobody introduces anybody to him any more."""
        self._buses.append(bus_at(place)[0])
        return self._buses[-1]

    async def close_buses(self) -> None:
        """Those that a test has left open, or the end of their contexts would wait for ever."""
        for bus in self._buses:
            await bus.close()

    def ended(self, shard: int, *, tell: bool = True) -> None:
        """A process is dead. `tell`: the others hear of it at once."""
        self._trusts.pop(shard, None)
        self.introductions.ended(shard)
        if tell:
            self.introduce(shard)

    def introduce(self, shard: int) -> None:
        """The others, as far as they live in this process, get the key of the next process of a shard."""
        for reader, trust in self._trusts.items():
            if reader != shard:
                trust.renew(self.introductions.key(shard, reader))
