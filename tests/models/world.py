"""What happens to a topic, its connections and its broker, as rules of a state machine in virtual time."""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from shardd.client import Client, session
from shardd.client.settings import Settings
from tests.models.broker import Broker
from tests.models.history import Broken, TopicHistory
from tests.models.wires import RUN_MAX_S, BusyError, ModelLoop

PARTITIONS_MAX: Final = 3
T = TypeVar("T")
_DEADLINE_S: Final = 20.0
REFILL: Final = st.integers(0, 9)  # messages that come at once
AWAY: Final = st.sampled_from([0.0, 0.3, 5.0])


def examples(short: int, most: int) -> int:
    """`short` in `make test`; `make models` sets the number, of which `most` are made."""
    return min(most, int(os.environ.get("MODEL_EXAMPLES", short)))


def model_settings(short: int, steps: int = 30, most: int = 1 << 31) -> settings:
    return settings(
        max_examples=examples(short, most),
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize="MODEL_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


class World(RuleBasedStateMachine):
    """One topic at one broker. `open` makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.serial = 0

    def open(self, seed: int, partitions: int, *, is_ours: bool) -> None:
        self.loop = ModelLoop(seed)
        self.topic = TopicHistory(partitions)
        self.errors: list[Exception] = []
        self.loop.set_exception_handler(self._unexpected)
        self.broker = self.loop.broker = Broker(self.topic, is_ours=is_ours)
        self.settings = Settings(unix_path="/model", deadline_s=_DEADLINE_S, request_timeout_s=4.0)
        self.client = Client(settings=self.settings)
        self._urandom: Any = vars(session)["os"]
        vars(session)["os"] = types.SimpleNamespace(urandom=self.loop.chance.randbytes)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What goes wrong in a callback ends the test, too."""
        if self.loop.is_stuck:
            work.close()
            raise BusyError("it is stuck")
        self.loop.ends_at = self.loop.time() + RUN_MAX_S
        found = self.loop.run_until_complete(work)
        if self.errors:
            raise self.errors[0]
        return found

    def _unexpected(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(error if isinstance(error, Exception) else Broken(str(context["message"])))

    def payloads(self, count: int) -> list[bytes]:
        self.serial += count
        return [b"%08d" % (self.serial - count + number) for number in range(count)]

    # ---- what happens to the topic ----

    def fill(self, count: int) -> None:
        for each in self.topic.partitions:
            self.topic.append(each.partition, self.payloads(count))

    @rule(refill=REFILL)
    def purge(self, refill: int) -> None:
        self.topic.purge()
        for group in self.broker.groups.values():
            group.purged(len(self.topic.partitions))
        self.fill(refill)
        self.broker.changed()

    @rule(partitions=st.integers(1, PARTITIONS_MAX), seconds=AWAY, refill=REFILL)
    def recreate(self, partitions: int, seconds: float, refill: int) -> None:
        """It may be missing for a while."""
        self.broker.groups.clear()
        self.topic.recreate(partitions)
        if seconds:
            self.broker.is_there = False
            self.broker.changed()
            self.run(asyncio.sleep(seconds))
            self.broker.is_there = True
        self.fill(refill)
        self.broker.changed()

    @rule(partitions=st.integers(1, PARTITIONS_MAX), refill=REFILL)
    def resize(self, partitions: int, refill: int) -> None:
        """Partitions are added or deleted at the end."""
        change = partitions - len(self.topic.partitions)
        if change < 0:
            self.topic.remove(-change)
        else:
            self.topic.add(change)
        for each in self.topic.partitions[partitions - max(change, 0) :]:
            self.topic.append(each.partition, self.payloads(refill))
        for group in self.broker.groups.values():
            group.resize(partitions)
        self.broker.changed()

    # ---- what happens to connections ----

    @rule(number=st.integers(0, 5), kind=st.sampled_from(["cut", "cut behind", "silent", "restart"]), seconds=AWAY)
    def connection(self, number: int, kind: str, seconds: float) -> None:
        pipes = self.loop.open_pipes()
        if kind == "restart":
            self.broker.restart()
            self.run(asyncio.sleep(seconds))
            self.broker.is_up = True
        elif pipes and kind == "silent":
            pipes[number % len(pipes)].fall_silent()
        elif pipes:
            pipes[number % len(pipes)].cut(carries_on=kind == "cut behind")

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.3, 2.0, 12.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        if seconds > 10:  # hand-overs end
            for group in self.broker.groups.values():
                group.expire()
            self.broker.changed()

    # ---- the end ----

    def heal(self) -> None:
        self.broker.is_up = self.broker.is_there = True
        self.broker.failures.clear()
        self.broker.changed()

    def close(self) -> None:
        """Leaves nothing behind, also after a failure."""
        if not hasattr(self, "loop"):
            return
        vars(session)["os"] = self._urandom
        if self.loop.is_stuck:
            return
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(asyncio.wait(tasks))
        self.loop.close()
