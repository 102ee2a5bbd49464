"""`shardd stream`: streams of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from shardd.cli.declared import Argument, Family
from shardd.cli.identity import identifier
from shardd.cli.names import Stream
from shardd.cli.output import named_with_id, size_text
from shardd.cli.remote import Remote, Yes, remote

if TYPE_CHECKING:
    from shardd.client import values

stream_family = Family("Streams of a server.")
NewName = Annotated[str, Argument("NAME")]


@remote(stream_family, "list", reads=True)
async def list_streams(remote: Remote) -> None:
    """All streams that the user may see."""
    columns = ("id", "name", "topics_count", "messages_count", "size_bytes", "created_at_us")
    remote.show(await remote.client.streams(), columns)


@remote(stream_family, "get", reads=True)
async def get_stream(remote: Remote, stream: Stream) -> None:
    """A stream and its topics."""
    from shardd.cli.output import plain

    found, topics = await _found(remote, stream)
    summary = [plain(each) for each in topics]
    for each in summary:
        del each["partitions"]
    remote.show_one(plain(found) | {"topics": summary})


async def _found(remote: Remote, stream: str) -> tuple[values.Stream, list[values.Topic]]:
    from shardd.client import statuses
    from shardd.client.errors import NotFoundError

    found = await remote.client.stream(identifier(stream))
    if found is None:
        raise NotFoundError(statuses.STREAM_NOT_FOUND)
    return found


@remote(stream_family, "create")
async def create_stream(remote: Remote, name: NewName) -> None:
    """Make a stream."""
    made = await remote.client.create_stream(name)
    remote.done(f"stream {made.name} is made (id {made.id})", stream=made.name, id=made.id)


@remote(stream_family, "update")
async def update_stream(remote: Remote, stream: Stream, name: NewName) -> None:
    """Give a stream another name."""
    await remote.client.update_stream(identifier(stream), name)
    remote.done(f"stream {stream} is named {name}", stream=stream, name=name)


@remote(stream_family, "delete")
async def delete_stream(remote: Remote, stream: Stream, yes: Yes = False) -> None:
    """Delete a stream with everything in it."""
    found, _ = await _found(remote, stream)
    named, loss = named_with_id(found), _loss(found)
    remote.confirm(f"Stream {named} goes with {loss}.", yes=yes)
    await remote.client.delete_stream(found.id)
    remote.done(f"stream {named} is deleted with {loss}", stream=found.name, id=found.id, deleted=True)


@remote(stream_family, "purge")
async def purge_stream(remote: Remote, stream: Stream, yes: Yes = False) -> None:
    """Remove all messages of a stream; its topics stay."""
    found, _ = await _found(remote, stream)
    named = named_with_id(found)
    remote.confirm(f"All messages of stream {named} go: {_loss(found)}.", yes=yes)
    await remote.client.purge_stream(found.id)
    remote.done(f"stream {named} is empty", stream=found.name, id=found.id, purged=True)


def _loss(found: values.Stream) -> str:
    return f"{found.topics_count} topics, {found.messages_count} messages, {size_text(found.size_bytes)}"
