"""Server-sent events over a data directory that is put back as files: ids of events say which message was had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.doors.http_server import HttpServer
from tests.doors.test_http_events import Events, fill, ids
from tests.support import wire


def put_back(server: HttpServer, directory: Path, others: int) -> str:
    """The last id of 50 messages; the directory has 30 of them and `others` behind them when it returns."""
    copy = directory / "copy"
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("s"), "t", 1)
        fill(tcp, 0, 30)
    server.stop()
    shutil.copytree(server.data_dir, copy, symlinks=True)
    server.start()
    with wire.connect(server.address) as tcp:
        fill(tcp, 30, 20)
    last = ids(server, server.root().token, 50)[-1]
    server.stop()
    shutil.rmtree(server.data_dir)
    shutil.copytree(copy, server.data_dir, symlinks=True)
    server.start()
    with wire.connect(server.address) as tcp:
        fill(tcp, 1000, others)
    return last


@pytest.mark.parametrize("others", [40, 5])
def test_an_id_of_a_directory_that_is_put_back_begins_at_the_oldest_message(tmp_path: Path, others: int) -> None:
    """With 40 others the offset of the id is there again, with 5 the partition ends before it."""
    with HttpServer(tmp_path / "data") as server:
        last = put_back(server, tmp_path, others)
        with Events(server, server.root().token, last=last) as events:
            reset = events.take_reset()
            assert (reset["expected"], reset["offset"], reset["put_back"]) == (50, 0, True)
            assert reset["before"] == reset["incarnation"]
            expected = [*range(30), *range(1000, 1000 + others)]
            assert [events.take() for _ in expected] == [(at, b"%d" % value) for at, value in enumerate(expected)]


def test_ids_go_on_over_a_restart_also_those_without_a_checksum(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data") as server:
        with wire.connect(server.address) as tcp:
            tcp.create_topic(tcp.create_stream("s"), "t", 1)
            fill(tcp, 0, 50)
        last = ids(server, server.root().token, 40)[-1]
        server.stop()
        server.start()
        incarnation, checksum, offset = last.split("-")
        assert int(checksum) > 0 and offset == "39"
        for each in (last, f"{incarnation}-{offset}", offset):
            with Events(server, server.root().token, last=each) as events:
                assert events.take() == (40, b"40")
