"""Writers into a real server, through its doors: what each says of its messages is true, over purges, recreations,
retention, partitions that come and go, cuts and restarts. The canaries show that the model finds what it is for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from shardd.client.messages import headers_of
from tests.models.door_writers import (
    NOT_STORED,
    STORED,
    UNKNOWN,
    CommandWriter,
    HttpWriter,
    LiftbridgeWriter,
    NatsWriter,
    ProducerWriter,
    Writer,
)
from tests.models.history import Broken, WriterAccount, demand
from tests.models.served import KEY_BYTES, NUMBER, PARTITIONS, PARTITIONS_MAX, RESTART_TURNS, ServedWorld, Site
from tests.models.ways import CUTS, Cut, Snare
from tests.models.world import model_settings

SETTINGS: Final = model_settings(3, steps=12, most=300)
WRITES_MAX: Final = 20  # of each restart
PAUSE_S: Final = 0.05  # between them
_OF_LIFTBRIDGE: Final = "lb."
KINDS: Final = (HttpWriter, CommandWriter, ProducerWriter, LiftbridgeWriter, NatsWriter)


class OneWriter(ServedWorld):
    """The history is what is read back before anything happens to the topic."""

    kind: ClassVar[type[Writer]]

    @initialize(partitions=PARTITIONS)
    def begin(self, partitions: int) -> None:
        self.open(partitions)
        self.account = WriterAccount(self.topic, repeats=False)
        self.writer = self.kind(self.site, self.name)

    def append(self, partition: int, count: int, tail: bytes = b"", header: str = "") -> None:
        """Somebody else's."""
        if count:
            self.send_messages(partition, self.made(count, tail, header), header)

    def settle(self) -> None:
        self.writer.changed.update(range(PARTITIONS_MAX))
        for each in self.topic.partitions:
            while messages := self.site.tcp.poll(self.stream, self.name, each.partition, value=each.end).messages:
                demand(messages[0].offset == each.end, f"offset {each.end} is followed by {messages[0].offset}")
                self.topic.append(each.partition, [one.payload for one in messages])
                for one in messages:
                    found = {name: _text(value) for name, value in headers_of(one.headers).items()}
                    kept = {name: value for name, value in found.items() if not name.startswith(_OF_LIFTBRIDGE)}
                    demand(one.payload[:KEY_BYTES] in self.sent, f"{one.payload!r} was never sent")
                    demand(kept == self.sent[one.payload[:KEY_BYTES]][1], f"{one.payload!r} has the headers {found}")

    def unread(self, partition: int, first: int) -> None:
        """Only messages for whose end the writer did not wait can have come meanwhile."""
        count = first - self.topic.partitions[partition].end
        under_way = [each for each, end in self.account.ends.items() if end == UNKNOWN and each not in self.topic.where]
        demand(count <= len(under_way), f"{count} messages are gone unread, {len(under_way)} were under way")
        self.topic.append(partition, [b"unread %d %d" % (partition, first - left) for left in range(count, 0, -1)])

    @rule(number=st.integers(0, PARTITIONS_MAX), count=st.integers(1, 9), header=st.text("aé", max_size=3))
    def write(self, number: int, count: int, header: str) -> None:
        """Also into a partition that there is not."""
        self._write(number, self._sending(number, count, header), header)

    @rule(number=NUMBER, count=st.integers(1, 9), which=st.integers(0, 8), cut=CUTS, is_passed=st.booleans())
    def write_over_a_cut(self, number: int, count: int, which: int, cut: Cut, is_passed: bool) -> None:
        """In the middle of the request that carries one of the messages, or before its answer has come."""
        partition = self._partition(number)
        payloads = self._sending(partition, count, "")
        self.site.ways.lay(Snare(cut, self.writer.coded(payloads[which % count]), is_passed))
        self._write(partition, payloads)
        self.site.ways.clear()

    @precondition(lambda self: not self.has_restarted)
    @rule(turn=st.integers(1, RESTART_TURNS), number=NUMBER, count=st.integers(1, 9), kills=st.booleans())
    def write_over_a_restart(self, turn: int, number: int, count: int, kills: bool) -> None:
        if turn != RESTART_TURNS:
            return
        self.has_restarted, partition = True, self._partition(number)
        with ThreadPoolExecutor(1) as beside:
            restarting = beside.submit(self.site.restart, kills=kills)
            for _ in range(WRITES_MAX):
                self._write(partition, self._sending(partition, count, ""))
                with contextlib.suppress(TimeoutError):
                    restarting.result(PAUSE_S)
                if restarting.done():
                    break
            restarting.result()

    @rule(number=NUMBER, count=st.integers(1, 9))
    def leave(self, number: int, count: int) -> None:
        partition = self._partition(number)
        payloads = self._sending(partition, count, "")
        with self._doubting(payloads):
            self._ended(payloads, self.writer.leave(partition, payloads))

    def _write(self, number: int, payloads: list[bytes], header: str = "") -> None:
        headers = {"h": header} if header else {}
        with self._doubting(payloads):
            ends = self.writer.write(number, payloads, headers, is_there=number < len(self.topic.partitions))
            self._ended(payloads, ends)

    @contextmanager
    def _doubting(self, payloads: list[bytes]) -> Iterator[None]:
        """Only what was sent while connections were cut can be sent again."""
        troubles, is_restarting = self.site.ways.troubles, self.site.is_restarting
        yield
        if self.kind.repeats and (is_restarting or self.site.in_trouble(troubles)):
            self.account.doubted.update(payloads)

    def _sending(self, partition: int, count: int, header: str) -> list[bytes]:
        payloads = self.made(count, b"", header)
        for each in payloads:
            self.account.sending(each, partition)
        return payloads

    def _ended(self, payloads: Sequence[bytes], ends: Sequence[str]) -> None:
        for payload, end in zip(payloads, ends, strict=True):
            self.account.ended(payload, end)

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        try:
            self.settle()
            self.account.check_end()
        finally:
            self.end()

    def end(self) -> None:
        self.writer.close()
        self.drop()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def one_writer(kind: type[Writer], site: Site) -> Any:
    return type(kind.__name__, (OneWriter,), {"site": site, "kind": kind, "stream": kind.stream})


@pytest.mark.parametrize("kind", KINDS)
def test_writer_of_a_server_tells_the_fate_of_every_message(site: Site, kind: type[Writer]) -> None:
    run_state_machine_as_test(one_writer(kind, site), settings=SETTINGS)


# ---- planted faults ----


class HopefulHttp(HttpWriter):
    """What is refused counts as stored."""

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        super().write(partition, payloads, headers, is_there=is_there)
        return [STORED] * len(payloads)


class HastyHttp(HttpWriter):
    """It sends again what may be stored."""

    def leave(self, partition: int, payloads: Sequence[bytes]) -> list[str]:
        self.write(partition, payloads, {}, is_there=True)
        return self.write(partition, payloads, {}, is_there=True)


class ForgetfulCommand(CommandWriter):
    """What was stored before the line that stops it is not told."""

    def _ends(self, sentence: str, count: int) -> list[str]:
        return [NOT_STORED] * count


class HopefulNats(NatsWriter):
    """Each message that was published counts as stored."""

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        super().write(partition, payloads, headers, is_there=is_there)
        return [STORED] * len(payloads)


class HopefulLiftbridge(LiftbridgeWriter):
    """Each message that was published counts as stored."""

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        super().write(partition, payloads, headers, is_there=is_there)
        return [STORED] * len(payloads)


class RepeatingHttp(HttpWriter):
    """It sends again what got no answer."""

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        ends = super().write(partition, payloads, headers, is_there=is_there)
        return super().write(partition, payloads, headers, is_there=is_there) if UNKNOWN in ends else ends


class RepeatingProducer(ProducerWriter):
    """It is not idempotent."""

    delivery = "at_least_once"


class OnceCommand(CommandWriter):
    """It is taken for one that stores all of it once."""

    repeats = False


class TurnedLiftbridge(LiftbridgeWriter):
    """The last message goes first."""

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        return super().write(partition, payloads[::-1], headers, is_there=is_there)


class AstrayProducer(ProducerWriter):
    """It chooses the partition."""

    def write(self, partition: int, payloads: Sequence[bytes], headers: dict[str, str], *, is_there: bool) -> list[str]:
        return super().write(0, payloads, headers, is_there=True)


CANARIES: Final = {
    HopefulHttp: "never stored",
    HastyHttp: "stored twice",
    ForgetfulCommand: "said not to be stored",
    HopefulNats: "never stored",
    TurnedLiftbridge: "another order",
    AstrayProducer: "was sent to partition",
}


def require_found(world: OneWriter, fault: str) -> None:
    world.settle()
    with pytest.raises(Broken, match=fault):
        world.account.check_end()
    world.end()


@pytest.mark.parametrize("kind", CANARIES)
def test_writer_of_a_server_that_tells_wrongly_is_found(site: Site, kind: type[Writer]) -> None:
    """One sequence of the machine: each step waits for a real server."""
    world = one_writer(kind, site)()
    world.begin(1)
    world.write(0, 3, "a")
    world.leave(0, 4)
    if kind is not TurnedLiftbridge:
        world.write(PARTITIONS_MAX, 2, "")
    require_found(world, CANARIES[kind])


def test_messages_under_way_may_be_retained_before_the_model_reads_them_and_others_not(site: Site) -> None:
    world = one_writer(HttpWriter, site)()
    world.begin(1)
    world.leave(0, 2)
    world.unread(0, 2)
    assert world.topic.partitions[0].end == 2
    world.account.ends.clear()
    with pytest.raises(Broken, match="1 messages are gone unread, 0 were under way"):
        world.unread(0, 3)
    world.end()


OVER_A_CUT: Final = {
    HopefulHttp: "never stored",
    HopefulLiftbridge: "never stored",
    HopefulNats: "never stored",
    RepeatingHttp: "stored twice",
    RepeatingProducer: "stored twice",
    OnceCommand: "stored twice",
}


@pytest.mark.parametrize("kind", OVER_A_CUT)
def test_writer_of_a_server_that_tells_wrongly_of_a_cut_is_found(site: Site, kind: type[Writer]) -> None:
    """The request is cut in its middle, or its answer is lost."""
    world = one_writer(kind, site)()
    world.begin(1)
    world.write(0, 3, "a")
    world.write_over_a_cut(0, 3, 1, Cut(), is_passed=OVER_A_CUT[kind] == "stored twice")
    require_found(world, OVER_A_CUT[kind])


def test_writer_of_a_server_that_tells_wrongly_of_a_restart_is_found(site: Site) -> None:
    world = one_writer(HopefulHttp, site)()
    world.begin(1)
    world.write_over_a_restart(RESTART_TURNS, 0, 3, kills=True)
    require_found(world, "never stored")
