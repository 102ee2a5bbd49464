"""A door in the hands of somebody else, for tests: it proves who it is, and then passes bytes of a TCP connection to a
worker and back.

    relay_door.py HOST PORT DESCRIPTOR      (only the supervisor starts it)

The first line of a connection: "SHARD", then the door proves itself; "SHARD ID KEY", then it says just that.
"""

from __future__ import annotations

import asyncio
import sys

from shardd.doors.door import Door
from shardd.doors.process import run_door
from shardd.protocol.door_frames import Kind, Prove, encode_request
from shardd.runtime.trust import place_path, shard_name


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(door: Door) -> None:
    await door.close()  # its own connections
    trust, places = door._trust, door._places

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shard, *said = (await reader.readline()).decode().split()
        name = shard_name(int(shard))
        id_, key = said or trust.credentials(name)
        theirs, ours = await asyncio.open_unix_connection(place_path(places[name]))
        ours.write(encode_request(1, Kind.PROVE, Prove(id_, key)))
        await asyncio.gather(copy(reader, ours), copy(theirs, writer))

    server = await asyncio.start_server(relay, sys.argv[1], int(sys.argv[2]), reuse_address=True)
    async with server:
        door.ready()
        await server.serve_forever()


if __name__ == "__main__":
    run_door(serve)
