"""A member of a group in a process of its own: `member_program.py URL STREAM TIMEOUT_MS`. Each line of its standard
input is a command and gets one line: `get N` reads N messages of `t` without a commit, `commit` stores that they are
done, `block SECONDS` computes on the event loop."""

from __future__ import annotations

import asyncio
import sys
import time

from shardd.client import Client, Consumer


async def carry_out(consumer: Consumer, command: str, argument: str) -> str:
    if command == "get":
        messages = [await consumer.get() for _ in range(int(argument))]
        consumer.done()
        return " ".join(message.payload.decode() for message in messages)
    if command == "commit":
        await consumer.commit()
    else:
        time.sleep(float(argument))  # noqa: ASYNC251  # what it is about
    return command


async def main(url: str, stream: str, timeout_ms: int) -> None:
    loop = asyncio.get_running_loop()
    async with Client(url) as client:
        consumer = Consumer(client, stream, "t", group="g", commit="manual", heartbeat_timeout_ms=timeout_ms)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command, _, argument = line.strip().partition(" ")
            print(await carry_out(consumer, command, argument), flush=True)
        await consumer.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
