"""Both shapes of the client on a real server: commands, the window, deadlines, reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shardd.client import Client, SyncClient, commands, unused_offsets
from shardd.client.admin import Administration, SyncAdministration
from shardd.client.errors import (
    AlreadyExistsError,
    AuthenticationError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    Fate,
    NotFoundError,
)
from shardd.client.settings import parse
from tests.client import sample_program
from tests.support.server import Server


def url(server: Server, options: str = "") -> str:
    return f"shardd://iggy:iggy@{server.address}{options}"


def test_importing_it_brings_nothing_of_the_server_and_no_package() -> None:
    code = """
import sys
before = set(sys.modules)
from shardd.client import Client, SyncClient
from shardd.client import answers, blocking
answers.number
blocking.BlockingLink
new = {name for name in set(sys.modules) - before if not name.startswith("shardd.client")}
print(*sorted(name for name in new if name.partition(".")[0] not in sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["shardd"]


def test_both_shapes_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")}

    assert methods(Administration) == methods(SyncAdministration)
    assert methods(Client) == methods(SyncClient)
    built = {
        name
        for module in (commands, unused_offsets)
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }
    of_sessions = {"login", "login_with_token", "logout", "join_group", "leave_group", "init_producer"}
    parts = {"nothing", "of"}  # that commands are built of
    assert built - of_sessions - parts == methods(Administration) - {"call"}


def test_commands_in_both_shapes(server: Server) -> None:
    async def of_asyncio() -> None:
        async with Client(url(server)) as client:
            stream = await client.create_stream("a")
            topic = await client.create_topic("a", "t", 3)
            assert len(topic.partitions) == 3
            found = await client.stream("a")
            assert found is not None and found[0].id == stream.id and [each.name for each in found[1]] == ["t"]
            with pytest.raises(AlreadyExistsError) as raised:
                await client.create_stream("a")
            assert raised.value.status == 1012
            bounds = await client.bounds("a", "t", (2,))
            assert [each.id for each in bounds.partitions] == [2]
            await client.set_topic_settings("a", "t", {"ack": "durable"})
            assert ("ack", "durable", True) in [
                (each.key, each.value, each.is_set) for each in await client.topic_settings("a", "t")
            ]
            assert (await client.me()).user_id == 0

    asyncio.run(of_asyncio())
    with SyncClient(url(server)) as client:
        with pytest.raises(NotFoundError):
            client.create_topic("none", "t")
        assert client.topic("a", "no") is None
        assert client.create_group("a", "t", "g").members == ()
        secret = client.create_token("token")
        assert [each.name for each in client.tokens()] == ["token"]
        with SyncClient(f"shardd://{secret.replace('/', '%2F')}@{server.address}") as other:
            assert other.me().user_id == 0
        client.delete_stream("a")
        assert client.stats().hostname and client.extensions().commands


@pytest.mark.io_engine
def test_many_requests_share_the_window_and_keep_their_answers(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server, "?window=8")) as client:
            names = [f"w{number}" for number in range(40)]
            made = await asyncio.gather(*(client.create_stream(name) for name in names))
            assert [each.name for each in made] == names
            canceled = [asyncio.ensure_future(client.stream(name)) for name in names]
            await asyncio.sleep(0)
            for task in canceled[::2]:
                task.cancel()
            found = await asyncio.gather(*canceled[1::2])
            assert [each[0].name for each in found if each] == names[1::2]

    asyncio.run(main())


@pytest.mark.io_engine
def test_threads_share_a_client(server: Server) -> None:
    with SyncClient(url(server)) as client:
        done: list[bool] = []
        threads = [threading.Thread(target=lambda: done.append(client.me().user_id == 0)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [True] * 8
    with pytest.raises(ClosedError):
        client.ping()


def test_a_wrong_password_is_told_at_once_and_no_server_at_the_deadline(server: Server) -> None:
    async def main() -> None:
        async with Client(f"shardd://iggy:wrong@{server.address}") as client:
            with pytest.raises(AuthenticationError):
                await client.ping()
        async with Client("shardd://127.0.0.1:1?deadline=0.2") as client:
            with pytest.raises(ConnectionLostError) as raised:
                await client.ping()
            assert raised.value.fate is Fate.NOT_SENT and raised.value.retryable

    asyncio.run(main())


@pytest.mark.io_engine
def test_a_client_goes_on_after_the_server_was_started_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"})

    async def main() -> None:
        async with Client(url(server)) as client:
            await client.create_stream("s")
            await asyncio.to_thread(server.stop)
            settings = {"SHARDD_TCP_ADDRESS": client.settings.address}
            server._env |= settings
            again = asyncio.create_task(client.streams())
            await asyncio.to_thread(server.start)
            assert [each.name for each in await again] == ["s"]

    server.start()
    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_who_gets_no_answer_is_told_at_its_deadline_and_the_silent_connection_is_left() -> None:
    async def main() -> None:
        opened: list[asyncio.StreamWriter] = []

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(writer)
            await reader.read()

        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        async with Client(settings=parse(f"{host}:{port}")) as client:
            with pytest.raises(DeadlineError) as raised:
                await client.call(commands.ping(), 0.1)
            assert raised.value.fate is Fate.UNKNOWN
            with pytest.raises(DeadlineError):
                await client.call(commands.ping(), 0.1)
            assert len(opened) == 2
        for writer in opened:
            writer.close()
        listener.close()

    asyncio.run(main())


def test_request_that_was_given_up_ends_a_silent_connection_at_its_deadline() -> None:
    """The caller's own waits may be shorter, again and again."""

    async def main() -> None:
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            ended.set()
            writer.close()

        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        async with Client(settings=parse(f"{host}:{port}")) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.call(commands.join_group("s", "t", "g")._replace(repeatable=False), 0.2)
            async with asyncio.timeout(60):
                await ended.wait()
        listener.close()

    asyncio.run(main())


def test_the_program_for_type_checkers_runs(server: Server) -> None:
    """Its types are looked at by `make lint` and `make pyright`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        sample_program.main(f"shardd://iggy:iggy@{server.address}")
    missing, counts, read = out.getvalue().splitlines()
    assert missing == "2010 False True" and counts.startswith("4 [") and counts.endswith(" [b'payload']")
    partition, offset, messages = map(int, read.split())
    assert (partition, offset, messages) != (0, 0, 0)
