"""A publisher over NATS whose worker stands still, and is lost before it has said anything of the message, hears a
negative ack by another login of its user: at another worker, or when it connects again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import nats.errors

from tests.doors.liftbridge_server import HOST, LiftbridgeServer
from tests.doors.nats_peers import envelope, nats_client, next_ack
from tests.support.on_loop import on_loop

SETTINGS = {
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": f"{HOST}:0",
}
LOGINS = 4  # the workers have them in turns
INBOX = "_INBOX.late"


def test_publisher_of_a_lost_worker_hears_by_another_worker_that_its_message_may_be_lost(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data", SETTINGS) as server:
        address = tomllib.loads(server.runtime_config.read_text())["liftbridge"]["nats_server"]["address"]
        with server.client() as root:
            root.create("s", LOGINS)

        @on_loop
        async def scenario() -> None:
            async with contextlib.AsyncExitStack() as held:
                clients = [await held.enter_async_context(nats_client(f"nats://{address}")) for _ in range(LOGINS)]
                acks = [await client.subscribe(INBOX) for client in clients]
                for client in clients:
                    await client.flush()
                pid = server.worker_pids()[0]
                os.kill(pid, signal.SIGSTOP)
                for number, client in enumerate(clients):
                    message = envelope(b"x", INBOX, correlationId=f"{number}")
                    await client.publish(f"s.{number}" if number else "s", message)
                    await client.flush()
                os.kill(pid, signal.SIGKILL)
                heard = [asyncio.create_task(first_negative(each)) for each in acks]
                try:
                    found = None
                    for each in asyncio.as_completed(heard):
                        found = found or await each
                        if found:
                            break
                    assert found == ("s", 1)
                finally:
                    for each in heard:
                        each.cancel()

        scenario()


async def first_negative(acks: Any) -> tuple[str, int] | None:
    """None: its connection has ended, with the worker, or it hears none."""
    with contextlib.suppress(nats.errors.Error, TimeoutError):
        while True:
            ack = await next_ack(acks)
            if ack.ackError:
                return ack.stream, ack.ackError
    return None
