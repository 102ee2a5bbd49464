"""A loop of purges cannot fill the disk through the trash (docs/adr/0037): names stay below a bound while the sends of
others go on; kills in the middle of it lose nothing and bring nothing back; a full disk empties the trash first."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.protocol.codes import Code
from tests.crash import faults
from tests.support import top, wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wire import Wire

PARTITIONS = 1_000
FEW = 300  # of the topic that is purged between kills
NAMES = 5  # of a partition: its directory, marker, log, index, manifest
NAMES_MAX = 1_000
STILL_IN_THE_TRASH = 10008
ROUNDS = 3
SETTINGS = {"SHARDD_SYSTEM_TRASH_NAMES_MAX": str(NAMES_MAX), "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
BEHIND_A_KILL = (ConnectionError, OSError, wire.StatusError)


def names_in(trash: Path) -> int:
    return sum(len(directories) + len(files) for _, directories, files in os.walk(trash))


class Watch(threading.Thread):
    """Looks again and again how many names are in the trash."""

    def __init__(self, trash: Path) -> None:
        super().__init__(daemon=True)
        self.trash, self.most, self.stopping = trash, 0, threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.05):
            self.most = max(self.most, names_in(self.trash))


class Bystander(threading.Thread):
    """Sends to its own topic."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.connection = wire.connect(address)
        self.connection.create_topic(self.connection.create_stream("other"), "t", 1)
        self.sent, self.stopping = 0, threading.Event()
        self.fault: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.connection.send("other", "t", wire.to_partition(0), [wire.message(b"x")])
                self.sent += 1
        except Exception as error:
            self.fault = error


SERVER: Final = Serving(env=SETTINGS, cpus_min=2)


def send_to_all(connection: Wire, partitions: int, round_number: int) -> None:
    message = [wire.message(b"%d" % round_number)]
    for begin in range(0, partitions, 50):
        some = range(begin, min(begin + 50, partitions))
        payloads = [wire.batch("purged", "t", wire.to_partition(partition), message) for partition in some]
        connection.send_bytes(b"".join(wire.frame(wire.SEND_MESSAGES, payload) for payload in payloads))
        for _ in some:
            status, _ = connection.reply()
            if status != 0:
                raise wire.StatusError(wire.SEND_MESSAGES, status)


def purge(connection: Wire) -> None:
    """10008 is what a deletion gets that waited for the trash for 10 s: nothing was changed."""
    for _ in range(12):
        try:
            connection.request(Code.PURGE_TOPIC, wire.identifier("purged") + wire.identifier("t"))
            return
        except wire.StatusError as refused:
            if refused.status != STILL_IN_THE_TRASH:
                raise
    raise AssertionError("the trash is not emptied")


def prepare(server: Server, partitions: int) -> Wire:
    connection = wire.connect(server.address)
    connection.create_topic(connection.create_stream("purged"), "t", partitions)
    return connection


def test_a_loop_of_purges_waits_for_the_trash_and_the_sends_of_others_go_on(own_server: Server) -> None:
    trash = layout.trash_directory(own_server.data_dir)
    connection, bystander, watch = prepare(own_server, PARTITIONS), Bystander(own_server.address), Watch(trash)
    bystander.start()
    watch.start()
    sent = []
    for number in range(ROUNDS):
        send_to_all(connection, PARTITIONS, number)
        before = bystander.sent
        purge(connection)
        sent.append(bystander.sent - before)
        assert not any(each.messages_count for each in connection.partitions("purged", "t"))
    for thread in (watch, bystander):
        thread.stopping.set()
        thread.join(60)
    assert bystander.fault is None and all(sent[1:]), sent
    assert NAMES_MAX < watch.most <= NAMES_MAX + PARTITIONS * NAMES, "the bound, and what one purge brings"
    faults.wait_until(lambda: names_in(trash) == 0, "the trash is not emptied")
    figures = top.shard_figures(own_server.address)[0]
    assert figures["trash.names_left"] == figures["trash.bytes_left"] == figures["trash.deletions_waiting"] == 0
    assert figures["trash.names_removed"] == ROUNDS * PARTITIONS * NAMES


def test_kills_in_a_loop_of_purges_bring_nothing_back(own_server: Server) -> None:
    """Each purge is done on every partition or on none, and the next process goes on with the trash."""
    trash = layout.trash_directory(own_server.data_dir)
    connection, number, purged_below = prepare(own_server, FEW), 0, 0
    for kill in range(4):
        began, killed = number, threading.Event()

        def kill_soon(kill: int = kill, killed: threading.Event = killed) -> None:
            faults.wait_until(lambda: names_in(trash) > NAMES_MAX, "nothing is in the trash")
            time.sleep(0.05 * kill)
            os.kill(own_server.worker_pids()[kill % 2], signal.SIGKILL)
            killed.set()

        killer = threading.Thread(target=kill_soon, daemon=True)
        killer.start()
        while not killed.is_set() or number == began:
            try:
                send_to_all(connection, FEW, number)
                purge(connection)
                purged_below = number + 1
            except BEHIND_A_KILL:
                connection.close()
                faults.wait_until_served(own_server.address, 0, 0, range(FEW))
                connection = wire.connect(own_server.address)
            number += 1
        killer.join(60)
        faults.wait_until_served(own_server.address, 0, 0, range(FEW))
        connection.close()
        connection = wire.connect(own_server.address)
        for partition in range(FEW):
            found = {int(each.payload) for each in connection.read_all("purged", "t", partition)}
            assert all(purged_below <= each < number for each in found), f"{partition}: {found}"
    purge(connection)
    assert not any(each.messages_count for each in connection.partitions("purged", "t"))
    faults.wait_until(lambda: names_in(trash) == 0, "the trash is not emptied")
    connection.close()
