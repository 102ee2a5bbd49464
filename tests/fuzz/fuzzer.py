"""Fuzzes a running server: connections logged in as root, as a user with few rights, and not at all."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from immutables import Map

from shardd.protocol.codes import Code
from shardd.protocol.legacy.generations import Generation
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions, encode_permissions
from tests.fuzz import legacy
from tests.fuzz.contents import remove_streams, remove_tokens, remove_users
from tests.fuzz.iggy09_lanes import Lane09
from tests.fuzz.iggy09_templates import Mutator09
from tests.fuzz.lanes import BATCH_FRAMES, FindingError, Lane, Totals
from tests.fuzz.mutator import Mutator
from tests.fuzz.templates import GROUP, PASSWORD, STREAM, TOPIC, USER
from tests.fuzz.watch import Watch
from tests.support import wire
from tests.support.server import Server

T = TypeVar("T")
ROLES: Final = ("root", "root", "low", "low", "anonymous", "root", "low", "anonymous")
CLEAN_EVERY_FRAMES: Final = 40_000
PURGE_EVERY_FRAMES: Final = 5_000
LANES_OF_09: Final = 3  # one of so many
REST_MAX_S: Final = 1.0  # then what waits for messages is ended
_TOKEN: Final = "fuzz"


@dataclass(frozen=True, slots=True)
class Report:
    """Of one run; bytes are those of all workers together."""

    totals: Totals
    seconds: float
    resident_first: int
    resident_last: int
    resident_peak: int

    def __str__(self) -> str:
        totals = self.totals
        kinds = len(totals.seen) + len(totals.seen_09)
        roles = ", ".join(f"{count:,} {role}" for role, count in sorted(totals.by_role.items()))
        return (
            f"{totals.frames:,} frames in {self.seconds:.0f} s ({totals.frames / max(self.seconds, 0.001):,.0f}/s): "
            f"{roles}; {totals.closes:,} closes, {kinds} kinds of answers, {len(totals.statuses)} statuses; "
            f"workers {self.resident_first >> 20} -> {self.resident_last >> 20} MiB, peak {self.resident_peak >> 20}"
        )


def _first(sweep: list[T]) -> list[T]:
    """A batch of them, taken out."""
    batch = sweep[:BATCH_FRAMES]
    del sweep[:BATCH_FRAMES]
    return batch


class Fuzzer:
    """`run` raises a FindingError when something happens that must not."""

    def __init__(
        self, server: Server, seed: int, watch: Watch, lanes: int = 24, generation: Generation | None = None
    ) -> None:
        """`generation`: which clients the lanes are; None: classic ones and those of 0.9."""
        self.totals = Totals()
        self._server, self._watch, self._seed = server, watch, seed
        self._control: wire.Wire | None = None
        mutator = Mutator(str(seed)) if generation is None else legacy.mutator(str(seed), generation)
        self._sweeps = {role: mutator.sweep() for role in sorted(set(ROLES))}  # sent before what is drawn
        roles = (ROLES * (lanes // len(ROLES) + 1))[:lanes]
        self._sweeps_09 = {role: Mutator09(str(seed)).sweep() for role in self._sweeps}
        self.lanes = [
            Lane09(server.address, number, role, seed, mutator, self.totals)
            if generation is None and number % LANES_OF_09 == LANES_OF_09 - 1
            else Lane(server.address, number, role, seed, mutator, self.totals, generation)
            for number, role in enumerate(roles)
        ]
        self._selector = selectors.DefaultSelector()
        self._clean_at = self._purge_at = 0
        # Since when no lane begins a batch, so that what lies before the next cleaning comes to its end.
        self._resting_since_s: float | None = None

    def run(
        self, frames: int, seconds: float = float("inf"), progress: Callable[[Report], None] | None = None
    ) -> Report:
        """Until that many frames are answered or the time is over, whatever comes first."""
        began = time.monotonic()
        try:
            while self.totals.frames < frames and time.monotonic() - began < seconds:
                self._clean()
                for lane in self.lanes:
                    self._start(lane)
                self._resting_since_s = None
                while not all(lane.idle for lane in self.lanes):
                    self._turn()
                    self._watch.check()
                    over = self.totals.frames >= frames or time.monotonic() - began >= seconds
                    if over or self.totals.frames >= self._clean_at:
                        self._rest()
                    if self.totals.frames >= self._purge_at:
                        self._purge()
                if progress is not None:
                    progress(self._report(began))
            self._clean()
            self._watch.look()
        except FindingError as finding:
            raise FindingError(f"{finding}\n{self._outstanding()}") from finding
        finally:
            for lane in self.lanes:
                lane.close()
            if self._control is not None:
                self._control.close()
            self._selector.close()
        return self._report(began)

    def _report(self, began: float) -> Report:
        watch = self._watch
        return Report(self.totals, time.monotonic() - began, watch.resident_first, watch.resident, watch.resident_peak)

    def _outstanding(self) -> str:
        return "in work on all lanes:\n" + "\n".join(lane.describe() for lane in self.lanes)

    # ---- lanes ----

    def _start(self, lane: Lane) -> None:
        """The next batch, on a new connection when the old one is gone."""
        if lane.socket is None:
            try:
                self._selector.register(lane.connect(), selectors.EVENT_READ, lane)
            except OSError as error:
                raise FindingError(f"lane {lane.number} cannot connect: {error!r}") from error
        if isinstance(lane, Lane09):
            lane.begin_drawn(_first(self._sweeps_09[lane.role]))
        else:
            lane.begin(_first(self._sweeps[lane.role]))
        self._listen(lane)

    def _listen(self, lane: Lane) -> None:
        assert lane.socket is not None
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if lane.writing else 0)
        if self._selector.get_key(lane.socket).events != wanted:
            self._selector.modify(lane.socket, wanted, lane)

    def _turn(self) -> None:
        for key, events in self._selector.select(0.1):
            lane: Lane = key.data
            if events & selectors.EVENT_WRITE and lane.writing:
                lane.write()
                self._listen(lane)
            if events & selectors.EVENT_READ and lane.read():
                if lane.socket is None:
                    self._selector.unregister(key.fileobj)
                if self._resting_since_s is None:
                    self._start(lane)
        for lane in self.lanes:
            lane.check_time()

    def _rest(self) -> None:
        """A mutated frame may wait a minute for messages, until there is nothing any more that it could wait at."""
        now_s = time.monotonic()
        if self._resting_since_s is None:
            self._resting_since_s = now_s
        elif now_s - self._resting_since_s > REST_MAX_S:
            self._resting_since_s = float("inf")  # once is enough
            assert self._control is not None
            try:
                remove_streams(self._control)
            except (OSError, wire.StatusError) as error:
                raise FindingError(f"the server does not do its work any more: {error!r}") from error

    # ---- what the frames have made goes, what they need comes back ----

    def _clean(self) -> None:
        """No lane is at work. Also proves that the server still does its work. The lanes connect anew."""
        try:
            if self._control is None:
                self._control = wire.connect(self._server.address, timeout_s=60.0)
            control = self._control
            remove_streams(control)
            stream = control.create_stream(STREAM)
            topic = control.create_topic(stream, TOPIC, 3)
            address = wire.identifier(STREAM) + wire.identifier(TOPIC)
            control.request(Code.CREATE_CONSUMER_GROUP, address + wire.str8(GROUP))
            control.send(stream, topic, wire.to_partition(0), [wire.message(b"control")])
            found = [item.payload for item in control.read_all(stream, topic, 0)]
            if b"control" not in found:
                raise FindingError(f"a message that was acknowledged is not there: {found[:10]}")
            tokens = {
                "anonymous": None,
                "root": self._new_token(control),
                "low": self._new_low_user(control, stream, topic),
            }
        except (OSError, wire.StatusError) as error:
            raise FindingError(f"the server does not do its work any more: {error!r}") from error
        for lane in self.lanes:
            lane.token = tokens[lane.role]
            if lane.socket is not None:
                self._selector.unregister(lane.socket)
            lane.close()
        self._clean_at = self.totals.frames + CLEAN_EVERY_FRAMES
        self._purge_at = self.totals.frames + PURGE_EVERY_FRAMES

    def _purge(self) -> None:
        """Polls would become long otherwise. A frame may have removed or renamed the topic."""
        assert self._control is not None
        address = wire.identifier(STREAM) + wire.identifier(TOPIC)
        try:
            self._control.exchange(Code.PURGE_TOPIC, address)
        except OSError as error:
            raise FindingError(f"the server does not do its work any more: {error!r}") from error
        self._purge_at = self.totals.frames + PURGE_EVERY_FRAMES

    def _new_low_user(self, control: wire.Wire, stream: int, topic: int) -> bytes:
        remove_users(control)
        topics = Map({topic: TopicPermissions(poll_messages=True)})
        rights = Permissions(streams=Map({stream: StreamPermissions(read_stream=True, topics=topics)}))
        account = wire.str8(USER) + wire.str8(PASSWORD)
        control.request(Code.CREATE_USER, account + b"\x01\x01" + encode_permissions(rights))
        with wire.Wire(self._server.address, timeout_s=60.0) as low:
            low.login(USER, PASSWORD)
            return self._new_token(low)

    @staticmethod
    def _new_token(connection: wire.Wire) -> bytes:
        """After all tokens of the user are gone, a new one."""
        remove_tokens(connection)
        answer = connection.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, wire.str8(_TOKEN) + bytes(8))
        return answer[1 : 1 + answer[0]]
