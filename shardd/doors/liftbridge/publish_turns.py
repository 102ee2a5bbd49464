"""Whose turn it is to publish: users take turns, within a user its addresses, and within an address its clients."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from shardd.doors.door import DoorClient
from shardd.runtime.crowds import SharedRoom

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Waiting = TypeVar("Waiting")
_Clients = OrderedDict[DoorClient, deque[Item]]
_Networks = OrderedDict[str, _Clients[Item]]


def share_of(client: DoorClient) -> tuple[Hashable, str]:
    """The owner of a client's share, and the address within it: the user, as the incarnation that it has now. A client
    without a user is one of its address."""
    owner: Hashable = client.network if client.user_id < 0 else (client.user_id, client.owner)
    return owner, client.network


class PublishTurns(Generic[Item]):
    """Items that wait for a room, those of one client in their order. The next one is of a share that has `size_free`
    left: a share that is full holds up no other one. Nor does an address that has its share hold up a client of it that
    has nothing of the room, as `has_nothing` says, while its user has room. Loop thread only."""

    def __init__(self, room: SharedRoom, size_free: int, has_nothing: Callable[[DoorClient], bool]) -> None:
        self._room = room
        self._size_free = size_free
        self._has_nothing = has_nothing
        self._owners: OrderedDict[Hashable, _Networks[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def put(self, client: DoorClient, item: Item) -> None:
        owner, network = share_of(client)
        networks = self._owners.get(owner)
        if networks is None:
            networks = self._owners[owner] = OrderedDict()
        clients = networks.get(network)
        if clients is None:
            clients = networks[network] = OrderedDict()
        items = clients.get(client)
        if items is None:
            items = clients[client] = deque()
            if len(clients) > 1 and self._has_nothing(client) and not self._room.has_room(owner, network, 1):
                clients.move_to_end(client, last=False)
        items.append(item)

    @property
    def has_next(self) -> bool:
        return self._next() is not None

    def take(self) -> Item | None:
        """The next one whose share has room. None: no share of those that wait has."""
        found = self._next()
        if found is None:
            return None
        owner, network = found
        networks = self._owners[owner]
        clients = networks[network]
        client, items = next(iter(clients.items()))
        item = items.popleft()
        _end_turn(clients, client)
        _end_turn(networks, network)
        _end_turn(self._owners, owner)
        return item

    def drop(self, client: DoorClient, item: Item) -> None:
        """Nothing happens where it is not there any more."""
        owner, network = share_of(client)
        networks = self._owners.get(owner)
        clients = None if networks is None else networks.get(network)
        if networks is None or clients is None or item not in clients.get(client, ()):
            return
        clients[client].remove(item)
        if not clients[client]:
            del clients[client]
        if not clients:
            del networks[network]
        if not networks:
            del self._owners[owner]

    def _next(self) -> tuple[Hashable, str] | None:
        room, size = self._room, self._size_free
        for owner, networks in self._owners.items():
            if len(networks) == 1 or room.has_room(owner, "", size):  # whatever its addresses have
                for network, clients in networks.items():
                    if room.has_room(owner, network, size) or (
                        self._has_nothing(next(iter(clients))) and room.leaves_as_much(owner, network)
                    ):
                        return owner, network
        return None


def _end_turn(level: OrderedDict[Key, Waiting], key: Key) -> None:
    if level[key]:
        level.move_to_end(key)
    else:
        del level[key]
