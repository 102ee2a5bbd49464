"""What applying a record costs, before it is applied: what takes long is done in a helper thread."""

from __future__ import annotations

from typing import Final

from shardd.metadata import commands
from shardd.metadata.liftbridge import described, groups_concerned, names_in
from shardd.metadata.state import State

_SPREADING: Final = (
    commands.CreatePartitions,
    commands.DeletePartitions,
    commands.DeleteStream,
    commands.PurgeStream,
    commands.DeleteTopic,
    commands.PurgeTopic,
    commands.PrepareLiftbridge,
)


def steps_concerned(state: State, command: commands.Command) -> int:
    """What `command` costs in `state`: the partitions that it would make, purge or delete, and members of Liftbridge's
    groups, with their streams, among whom partitions are shared out again. 0 when it names what does not exist."""
    if isinstance(command, commands.JoinLiftbridgeGroup | commands.LeaveLiftbridgeGroup):
        group = state.liftbridge.groups.get(command.group_name)
        return 0 if group is None else group.size
    if isinstance(command, commands.CreateTopic):
        return command.partitions_count
    if not isinstance(command, _SPREADING):
        return 0
    stream = state.streams.get(command.stream.id)
    if stream is None:
        return 0
    if isinstance(command, commands.PrepareLiftbridge):
        return 2 * len(stream.topics) + state.liftbridge.groups_size
    if isinstance(command, commands.DeleteStream | commands.PurgeStream):
        partitions = sum(len(topic.partitions) for topic in stream.topics.values())
        return partitions + groups_concerned(state, names_in(state, stream))
    topic = stream.topics.get(command.topic.id)
    if topic is None:
        return 0
    partitions = getattr(command, "count", len(topic.partitions))
    return partitions + groups_concerned(state, [described(state, stream, topic).name])
