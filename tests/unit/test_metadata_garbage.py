"""The collector of Python has nothing to look at in a large state: what it would look at, it would stop the loop for
(docs/adr/0038-bounded-steps.md)."""

from __future__ import annotations

import gc

from shardd.metadata import commands
from shardd.metadata.apply import apply
from shardd.metadata.commands import Ref
from shardd.metadata.records import encode_record
from shardd.metadata.snapshot_image import decode_image, encode_image
from shardd.metadata.state import EMPTY, State

PARTITIONS = 1000


def changed(state: State, command: commands.Command) -> State:
    index = state.index + 1
    return apply(state, encode_record(state.digest, index, index, index, 0, command)[1])


def wide() -> State:
    state = changed(State(), commands.CreateUser("root", "hash", True, None))
    state = changed(state, commands.CreateStream("s"))
    stream = Ref(0, state.streams[0].incarnation)
    state = changed(state, commands.CreateTopic(stream, "t", PARTITIONS, 1, 0, 0, 1))
    topic = Ref(0, state.streams[0].topics[0].incarnation)
    return changed(state, commands.CreateConsumerGroup(stream, topic, "g"))


def test_partitions_topics_and_users_are_not_looked_at() -> None:
    made = wide()
    for state in (made, decode_image(encode_image(made, []), made.index, made.digest)[0]):
        gc.collect()  # tuples of what is not looked at are forgotten when they are seen for the first time
        topic = state.streams[0].topics[0]
        values = topic, topic.partitions, topic.partitions[0], topic.groups[0], state.streams[0], state.users[0]
        assert not any(map(gc.is_tracked, values))
        assert topic.settings is EMPTY
        assert state.users[0].tokens is EMPTY


def test_what_leads_elsewhere_is_looked_at() -> None:
    """So the test above can fail."""
    made = [wide()]
    gc.collect()
    assert gc.is_tracked(made)
    assert gc.is_tracked(made[0].streams)
