"""The pages of docs/protocol agree with the code: every frame of the examples is what the codecs and the engine read,
every status and every command stands in its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardd.client.errors import of_status
from shardd.doors.http.errors import http_status
from shardd.engine import twin, twin_record
from shardd.protocol import replies
from shardd.protocol.catalogue import decode
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import namespace
from tests.support.examples import frames

PAGES = Path(__file__).parents[2] / "docs" / "protocol"
FRAME_HEAD_BYTES = 8
POLL_HEAD_BYTES = 16


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


@pytest.mark.parametrize("frame", frames("request"), ids=lambda frame: Code(number(frame[4:8])).name)
def test_an_example_of_a_request_is_read_and_written_alike(frame: bytes) -> None:
    assert number(frame[:4]) == len(frame) - 4
    code, payload = number(frame[4:8]), frame[8:]
    if code == Code.SEND_MESSAGES:
        status, parts = twin.send_request_parse(payload)
        assert status == Status.OK
        assert parts is not None
        return
    assert decode(code, payload).encode() == payload


def test_examples_of_responses_are_whole() -> None:
    found = frames("response")
    assert len(found) >= 5
    for frame in found:
        assert number(frame[4:8]) == len(frame) - FRAME_HEAD_BYTES
        assert frame[:4] == bytes(4) or len(frame) == FRAME_HEAD_BYTES


def test_the_polled_example_is_a_valid_record() -> None:
    messages = [frame[FRAME_HEAD_BYTES + POLL_HEAD_BYTES :] for frame in frames("response") if len(frame) > 60]
    polled = [each for each in messages if each.endswith(b"hello")]
    assert len(polled) == 1
    valid_bytes, count, *_ = twin_record.scan_buffer(polled[0], 0, 0, 0, 0)
    assert (valid_bytes, count) == (len(polled[0]), 1)


def test_the_example_of_a_stream_is_what_the_server_encodes() -> None:
    [frame] = [each for each in frames("response") if each.endswith(b"\x02st")]
    assert frame == replies.frame(Status.OK, replies.StreamSummary(0, 1_776_000_000_000_000, 0, 0, 0, "st").encode())


def test_every_status_stands_in_the_table_with_its_name() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", (PAGES / "statuses.md").read_text(), re.MULTILINE)
    assert sorted((int(value), name) for value, name in rows) == sorted(
        (status.value, status.http_code) for status in Status
    )


def test_the_table_says_what_http_answers_and_what_may_be_asked_again() -> None:
    answered, _, _ = (PAGES / "statuses.md").read_text().partition("## 2.")
    rows = re.findall(r"^\| (\d+) \| \w+ \| (\w+) \| ([\w-]+) \|", answered, re.MULTILINE)
    assert len(rows) > 60 and rows[0] == ("0", "2xx", "-")
    for value, http, again in rows[1:]:
        status = Status(int(value))
        assert (status, http) == (status, str(http_status(status)))
        assert (status, again) == (status, "yes" if of_status(status).retryable else "no")


def test_every_command_stands_in_the_table_with_its_code() -> None:
    rows = re.findall(r"^\| (\d+) \| \[(\w+)\]", (PAGES / "commands.md").read_text(), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(code.value, code.name) for code in Code]


def test_the_worked_placements_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| (\d+), (\d+), (\d+) \| (\d+) \| \w+ \| (\d+) \| (\d+) \| (\d+) \|$",
        (PAGES / "records.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 3
    for row in rows:
        stream, topic, partition, packed, *owners = map(int, row)
        assert namespace(stream, topic, partition) == packed
        assert [twin.owner(packed, shards) for shards in (2, 4, 16)] == owners


def test_blocks_have_the_sizes_of_the_page() -> None:
    text = (PAGES / "commands.md").read_text()
    sizes = {name: int(size) for name, size in re.findall(r"^\| (stream|topic|partition) \| (\d+)", text, re.MULTILINE)}
    assert len(replies.StreamSummary(0, 0, 0, 0, 0, "st").encode()) == sizes["stream"] + 2
    assert len(replies.TopicSummary(0, 0, 0, 0, 1, 0, 1, 0, 0, "tp").encode()) == sizes["topic"] + 2
    assert len(replies.PartitionSummary(0, 0, 0, 0, 0, 0).encode()) == sizes["partition"]
