"""Room for answers over HTTP that clients have not taken. An answer has room before it is written, in the share of its
user, or of the address that a stranger comes from, and keeps it until the client has it: bytes in the memory of the
door and in the kernel count alike. Small answers are counted in looks, when their client leaves many of them.

Where there is no room, answers that clients have by now leave theirs. When a share is still full, the connection of
the same share that has stood still longest ends for the newcomer. When all room is full, the owner with most gives way
to one with less (runtime/crowds.py). Else the answer is a 503. Answers to requests that change something are never
refused: the looks end connections that leave them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from shardd.doors.taking import Connection, left_of
from shardd.runtime.crowds import FullError, Member, Room
from shardd.runtime.networks import network_of_host

if TYPE_CHECKING:
    from uvicorn.protocols.http.flow_control import FlowControl

    from shardd.doors.asgi import Application, Message, Receive, Scope, Send

ANSWERS_BYTES_MAX: Final = 64 << 20
ANSWERS_OF_ADDRESS_BYTES_MAX: Final = 32 << 20  # of one address of a user
ANSWER_BYTES: Final = 8 << 20  # of one at most before it is written, then what it has
FREE_BYTES: Final = 16 << 10  # of a connection: they need no room
PIECE_BYTES: Final = 16 << 10  # written at once: the rest of an answer that many get is not copied for each of them
HELD_PIECE_BYTES: Final = 64 << 10  # of answers that have room elsewhere: TLS and transports would copy all of it
GRACE_S: Final = 1.0  # in which a client that takes `STEP_BYTES` between two looks does not stand still
STEP_BYTES: Final = 8 << 10
ENDS_AT_ONCE: Final = 16  # in a turn of the loop
LOOKS_MAX: Final = 64  # at other connections, for a newcomer without room
UNREAD: Final = "shardd.unread"
"""Where the scope of a request has the `Unread` of its connection."""
OWNER: Final = "shardd.owner"
"""Where the scope of a request has the user whose share its answer counts in, once the user is known."""
WIRE: Final = "shardd.wire"
"""What a transport of TLS calls the transport below it (`get_extra_info`)."""
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BUSY: Final = b"Too many answers at a time that were not read\n"

Share = tuple[Hashable, str]
"""Owner and address."""


class Unread:
    """What the client of one connection has not taken. `share`: whose its last answer is. `give_way`: ends the
    connection. `is_held`: what is being written has room elsewhere. `is_beyond`: the last look has found no room."""

    __slots__ = (
        "_answers", "_is_gone", "_rest", "_transport", "flow", "give_way", "is_beyond", "is_held", "member", "pending",
        "share", "since_s",
    )  # fmt: skip

    def __init__(
        self, answers: Answers, transport: asyncio.Transport, flow: FlowControl, give_way: Callable[[], None]
    ) -> None:
        self._answers = answers
        self._transport = transport
        self._rest: Connection | None = None
        self.flow = flow
        self.give_way = give_way
        self.is_beyond = self.is_held = False
        self.member: Member | None = None
        self.pending = 0  # bytes that have room and are not written yet
        self.share: Share = "", ""
        self.since_s = 0.0  # it stands still
        self._is_gone = False

    @property
    def is_gone(self) -> bool:
        """Nothing of what is written from now on is kept."""
        return self._is_gone or self._transport.is_closing()

    def linger(self, rest: Connection, give_way: Callable[[], None]) -> None:
        """The connection is closed, but `rest`: what the kernel has and the client does not."""
        self._is_gone = True
        self._rest, self.give_way = rest, give_way

    def unsent_bytes(self) -> int:
        """What the kernel does not even have."""
        if self._is_gone:
            return 0
        wire: asyncio.Transport | None = self._transport.get_extra_info(WIRE)
        below = 0 if wire is None else wire.get_write_buffer_size()
        return self.pending + self._transport.get_write_buffer_size() + below

    def left_bytes(self) -> int:
        """All that the client does not have."""
        connection = self._rest or self._transport.get_extra_info("socket")
        descriptor = -1 if connection is None else connection.fileno()
        in_kernel = 0 if descriptor < 0 else left_of(descriptor)
        return self.unsent_bytes() + in_kernel

    def admit(self, size: int) -> bool:
        """Room for `size` bytes more; they are pending then."""
        if not self._answers.admit(self, self.left_bytes(), size):
            return False
        self.pending += size
        return True

    def look(self, *, has_everything: bool) -> None:
        """Every now and then. `has_everything`: the client, of all answers."""
        if self.member is not None or not has_everything:
            self._answers.look(self, 0 if has_everything else self.left_bytes())

    def leave(self) -> None:
        """The connection is gone."""
        self._is_gone = True
        self._answers.leave(self)


class Answers:
    """Of one door. Loop thread only."""

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = now_s or asyncio.get_running_loop().time
        self._room = Room(ANSWERS_BYTES_MAX, ANSWERS_OF_ADDRESS_BYTES_MAX)
        self._of: dict[Share, dict[Unread, None]] = {}  # the longest wait first

    @property
    def used_bytes(self) -> int:
        return self._room.used

    def admit(self, unread: Unread, left: int, size: int) -> bool:
        """`left`: what its client does not have of earlier ones."""
        member, share = unread.member, unread.share
        if member is not None and (left <= FREE_BYTES or share != (member.owner, member.address)):
            self.leave(unread)
        if left + size <= FREE_BYTES:
            return True
        if unread.member is not None:
            self._room.resize(unread.member, left)
        if not self._room.has_room(*share, _charge(unread, left, size)):
            self._look_at_others(unread, share, _charge(unread, left, size))
        while not self._grow(unread, share, left, size):
            if not self._end_longest(unread, share):
                return False
        return True

    def _look_at_others(self, newcomer: Unread, share: Share, size: int) -> None:
        """Until there is room: at connections of the same share, then of others, those that stand still longest
        first."""
        others = chain.from_iterable(each for key, each in [*islice(self._of.items(), LOOKS_MAX)] if key != share)
        for unread in [*islice(chain(self._of.get(share, ()), others), LOOKS_MAX)]:
            if unread is not newcomer and unread.member is not None:
                self.look(unread, unread.left_bytes())
                if self._room.has_room(*share, size):
                    return

    def look(self, unread: Unread, left: int) -> None:
        if unread.is_held:
            left = min(left, 0 if unread.member is None else unread.member.size)
        was_beyond, unread.is_beyond = unread.is_beyond, False
        if left <= FREE_BYTES:
            self.leave(unread)
        elif unread.member is not None:
            if unread.member.size - left >= STEP_BYTES:
                self._goes_on(unread, unread.member)
            self._room.resize(unread.member, left)
        elif not self.admit(unread, left, 0):
            unread.is_beyond = True
            if was_beyond:
                unread.give_way()

    def shrink(self) -> bool:
        """Behind looks: what was small when it was written may be more than fits. Each that gives way is looked for
        among all owners, so few do in a turn. False: that was all."""
        return self._room.shrink(ENDS_AT_ONCE)

    def leave(self, unread: Unread) -> None:
        if unread.member is not None:
            self._room.leave(self._forget(unread, unread.member))

    def _goes_on(self, unread: Unread, member: Member) -> None:
        """It is the last of those that stand still."""
        unread.since_s = self._now_s()
        of = self._of[member.owner, member.address]
        del of[unread]
        of[unread] = None

    def _grow(self, unread: Unread, share: Share, left: int, size: int) -> bool:
        """It has room for both then, whatever they are, where there is some for `ANSWER_BYTES` of them."""
        charge = _charge(unread, left, size)
        try:
            if unread.member is None:
                member = self._room.enter(*share, partial(self._gave_way, unread), charge)
                unread.member, unread.since_s = member, self._now_s()
                self._of.setdefault(share, {})[unread] = None
            else:
                member = unread.member
                if charge:
                    self._room.grow(member, charge)
        except FullError:
            return False
        self._room.resize(member, left + size)
        return True

    def _end_longest(self, newcomer: Unread, share: Share) -> bool:
        """Of the same share, so that the newcomer has room. False: none has stood still long enough."""
        longest = next(iter(self._of.get(share, ())), None)
        if longest is None or longest is newcomer or self._now_s() - longest.since_s < GRACE_S:
            return False
        self.leave(longest)
        _end(longest)
        return True

    def _gave_way(self, unread: Unread) -> None:
        assert unread.member is not None
        self._forget(unread, unread.member)
        _end(unread)

    def _forget(self, unread: Unread, member: Member) -> Member:
        share = member.owner, member.address
        del self._of[share][unread]
        if not self._of[share]:
            del self._of[share]
        unread.member = None
        return member


def _charge(unread: Unread, left: int, size: int) -> int:
    """What has to be free for an answer of `size` bytes."""
    return min(left + size if unread.member is None else size, ANSWER_BYTES)


def _end(unread: Unread) -> None:
    """A client that has everything keeps its connection."""
    if unread.left_bytes() > FREE_BYTES:
        unread.give_way()


class CountedAnswers:
    """Around an application: its answers have room of `Answers`, but for those that have room elsewhere."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread: Unread = scope[UNREAD]
        if unread.flow.write_paused:
            await unread.flow.drain()  # no answer is made behind one that is not taken
        await self._inner(scope, receive, _Counted(unread, scope, send).send)


class _Counted:
    """One answer. Its head waits for the first piece of its body: until then it may become another one."""

    __slots__ = ("_changes", "_has_no_body", "_head", "_is_refused", "_scope", "_send", "_unread")

    def __init__(self, unread: Unread, scope: Scope, send: Send) -> None:
        self._unread = unread
        self._scope = scope
        self._send = send
        self._head: Message | None = None
        self._is_refused = False
        self._has_no_body = scope["method"] == "HEAD"
        self._changes = scope["method"] not in _READS

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            client = network_of_host((self._scope["client"] or ("", 0))[0])
            self._unread.share = self._scope.get(OWNER, client), client
        if self._unread.is_held:
            for piece in pieces_of(message, HELD_PIECE_BYTES):
                if self._unread.is_gone:
                    return
                await self._send(piece)
        elif message["type"] == "http.response.start":
            self._head = message
        elif not self._is_refused:
            await self._send_body(message)

    async def _send_body(self, message: Message) -> None:
        body, unread = message.get("body", b""), self._unread
        size = 0 if self._has_no_body else len(body)
        if size <= FREE_BYTES or unread.is_gone:  # a look counts it, if the client leaves much of it
            await self._send_head()
            await self._send(message)
            return
        if unread.admit(size):
            pass
        elif self._changes:  # what is done is told
            unread.pending += size
        else:
            await self._refuse()
            return
        try:
            await self._send_head()
            for piece in pieces_of(message, PIECE_BYTES):
                if unread.is_gone:
                    return
                await self._send(piece)
                unread.pending -= len(piece["body"])
                size -= len(piece["body"])
        finally:
            unread.pending -= size

    async def _send_head(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            await self._send(head)

    async def _refuse(self) -> None:
        """Of an answer that has begun the rest cannot come: its connection ends."""
        self._is_refused = True
        if self._head is None:
            self._unread.leave()
            self._unread.give_way()
            return
        fields = (b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"1")
        headers = [*fields, (b"content-length", str(len(_BUSY)).encode())]
        await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"" if self._has_no_body else _BUSY})


def pieces_of(message: Message, size_max: int) -> Iterator[Message]:
    """A body of HTTP in pieces. They are copies: a transport may keep what it has not written, and all behind it."""
    body = message.get("body", b"")
    if len(body) <= size_max:
        yield message
        return
    more, view = message.get("more_body", False), memoryview(body)
    for at in range(0, len(body), size_max):
        piece = bytes(view[at : at + size_max])
        yield {**message, "body": piece, "more_body": more or at + len(piece) < len(body)}
