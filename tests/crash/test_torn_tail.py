"""A cut or dirty tail of a log, as a crash of the machine leaves it: all before it is there, and sending goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import faults
from tests.crash.torn import through_a_server
from tests.support import wire
from tests.unit.services_harness import Workers

CUTS = 20  # `make crash-torn` makes 100


def test_everything_before_a_torn_tail_is_there_and_offsets_continue(tmp_path: Path) -> None:
    through_a_server(tmp_path, CUTS)


FAR_US = 2**62


def hostile_payload(first_offset: int, like: wire.Message) -> bytes:
    """A whole log with the offsets that come next, in the far future."""
    return b"".join(faults.record(like, first_offset + n, b"forged", FAR_US) for n in range(5))


@pytest.mark.io_engine
@pytest.mark.parametrize("tear", ["cut", "header lost"])
def test_a_log_in_the_payload_of_a_torn_record_is_never_served(tmp_path: Path, tear: str) -> None:
    """Of the last record with its end missing, and of one whose header never came to the device: what is whole is
    served, sends go on with the time of this server, a consumer that asks for the next message gets on or is told."""
    with Workers(tmp_path) as workers:
        connection = workers.connect()
        connection.create_topic(connection.create_stream("s"), "t", 1)
        for number in range(4):
            connection.send(0, 0, wire.to_partition(0), [wire.message(b"honest %d" % number)])
        [like] = connection.poll(0, 0, 0, value=3, count=1).messages
        for first in (5, 6):
            connection.send(0, 0, wire.to_partition(0), [wire.message(hostile_payload(first, like))])
        messages = connection.read_all(0, 0, 0)
    log = faults.log_path(tmp_path, 0, 0, 0)
    for suffix in (".index", ".manifest"):  # a crash: neither was written to the end
        log.with_suffix(suffix).unlink()
    content = log.read_bytes()
    begins = len(content) - len(messages[5].raw)
    if tear == "cut":
        log.write_bytes(content[:-7])
        whole, expected = 5, 5
    else:
        begins -= len(messages[4].raw)
        log.write_bytes(content[:begins] + bytes(64) + content[begins + 64 :])
        whole, expected = 4, 4 + (len(content) - begins) // 64 + 1
    for lives in range(2):
        with Workers(tmp_path) as workers:
            connection = workers.connect()
            found = connection.poll(0, 0, 0, value=0, count=whole).messages
            assert [each.raw for each in found] == [each.raw for each in messages[:whole]]
            if tear == "header lost":
                with pytest.raises(wire.StatusError) as refusal:
                    connection.poll(0, 0, 0, value=whole, count=10)
                assert refusal.value.status == 4027
            connection.send(0, 0, wire.to_partition(0), [wire.message(b"goes on")])
            [newest] = connection.poll(0, 0, 0, strategy=wire.POLL_LAST, count=1).messages
            assert (newest.offset, newest.payload) == (expected + lives, b"goes on")
            assert newest.timestamp_us < FAR_US
            assert log.read_bytes()[:begins] == content[:begins]
