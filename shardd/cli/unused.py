"""`shardd offset list` and `delete` for all consumers and groups of a topic, by the time of their last use."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

from shardd.cli.declared import Option
from shardd.cli.durations import duration_us
from shardd.cli.identity import identifier
from shardd.cli.reading import bounds_of
from shardd.cli.remote import EXIT_USAGE, CommandError, Remote

COLUMNS: Final = ("partition", "kind", "consumer", "stored", "used_at_us", "user", "members", "may_come_back")
Unused = Annotated[
    str | None, Option("--unused", about="Of all consumers and groups, those that were not used for so long: 30d.")
]


async def list_unused(remote: Remote, stream: str, topic: str, age: str | None) -> None:
    """`age` None: all of them."""
    remote.show(await _found(remote, stream, topic, 0 if age is None else _age_us(age), delete=False), COLUMNS)


async def delete_unused(remote: Remote, stream: str, topic: str, age: str, *, dry_run: bool, yes: bool) -> None:
    """Groups stay that have members or whose members may come back. What is used before its turn comes stays, too."""
    age_us = _age_us(age)
    found = await _found(remote, stream, topic, age_us, delete=False)
    rows = [row for row in found if not row["members"] and not row["may_come_back"]]
    if rows and not dry_run:
        loss = f"{len(rows)} stored offsets of {stream}/{topic} go; a consumer that comes back begins again."
        remote.confirm(loss, yes=yes)
        rows = await _found(remote, stream, topic, age_us, delete=True)
    remote.show(rows, COLUMNS)
    if held := sum(row["may_come_back"] for row in found):
        sentence = f"{held} stored offsets of groups stay, their members may come back (offsets.expiry_group_hold)"
        print(f"shardd: {sentence}", file=sys.stderr)


def _age_us(age: str) -> int:
    found = duration_us(age)
    if not found:
        raise CommandError("an age of 0 takes what is in use as well; say a longer one", EXIT_USAGE)
    return found


async def _found(remote: Remote, stream: str, topic: str, age_us: int, *, delete: bool) -> list[dict[str, Any]]:
    address = identifier(stream), identifier(topic)
    names = {each.id: each.name for each in await remote.client.groups(*address)}
    rows: list[dict[str, Any]] = []
    for partition in await bounds_of(remote, stream, topic):
        first, begun = 0, False
        while first or not begun:
            page = await remote.client.unused_offsets(*address, partition.id, first, age_us, delete=delete)
            rows += [
                {
                    "partition": partition.id,
                    "kind": "group" if each.group else "consumer",
                    "consumer": names.get(each.consumer, each.consumer) if each.group else each.consumer,
                    "stored": each.stored,
                    "used_at_us": each.used_us,
                    "user": each.user,
                    "members": each.members,
                    "may_come_back": each.may_come_back,
                }
                for each in page.offsets
            ]
            first, begun = page.next_first, True
    return rows
