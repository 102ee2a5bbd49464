"""`make fuzz-liftbridge`: millions of mutated envelopes and NATS requests, in process.

    python -m tests.fuzz.nats [--inputs N] [--seed N]

An envelope is one or it is plain; requests come in any pieces and are read the same as in one, or end with the same
error. Anything else ends the run with the input and its seed."""

from __future__ import annotations

import argparse
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.envelope import MAGIC, Published, decode_ack, decode_publish
from shardd.protocol.nats import CONTROL_LINE_BYTES_MAX, NatsError, Requests

INPUTS: Final = 5_000_000
_PROGRESS_EVERY: Final = 500_000
_PAYLOAD: Final = "12026b31 1a0568656c6c6f 4a060a0168120131 520661636b732e31 5a03632d37 6001"
ENVELOPES: Final = tuple(
    MAGIC + bytes.fromhex(each)
    for each in (
        f"00080000 {_PAYLOAD}",
        "000c0100 bca13510 12026b31 1a0568656c6c6f 520661636b732e31 5a03632d37",
        "000c0100 4ecf4164 08ffffffffffffffffff01 1a026869 4a060a0168120131 6001",
        "000a0000 ffff 1a0568656c6c6f",
        "00080001 0a066f7264657273 202a 2a0661636b732e31 3203632d37 40959a97ece39fe7cb17 5002",
        "00080000",
        "",
    )
)
REQUESTS: Final = (
    b"PUB a.b 5\r\nhello\r\n",
    b"PUB a.b _INBOX.x 0\r\n\r\n",
    b"HPUB a.b re.ply 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"SUB a.*.> group 17\r\n",
    b"UNSUB 17 5\r\n",
    b'CONNECT {"verbose":true,"user":"u","pass":"p","echo":false,"lang":"go"}\r\n',
    b'CONNECT {"auth_token":"t","headers":true}\n',
    b"PING\r\n",
    b"pong\n",
)
PAYLOAD_MAX: Final = 256
_BYTES: Final = (b"\r\n", b"\n", b" ", b"\t", b"\0", b"\xff", b"99999999999", b"-1", b"4097", b"{", b'"', b".>", b"*")


class FindingError(Exception):
    """What must not be, and the input."""


def mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 3, 8))):
        at = dice.randrange(len(changed) + 1)
        what = dice.randrange(5)
        if what == 0 and at < len(changed):
            changed[at] = dice.randrange(256)
        elif what == 1:
            changed[at:at] = dice.choice(_BYTES)
        elif what == 2:
            del changed[at : at + dice.randrange(1, 9)]
        elif what == 3:
            changed[at:at] = dice.randbytes(dice.randrange(1, 12))
        else:
            changed[at:at] = changed[: dice.randrange(len(changed) + 1)]
    return bytes(changed[:16_384])


def check_envelope(data: bytes, decode: Callable[[bytes], object] = decode_publish) -> str:
    """What it is."""
    try:
        found = decode(data)
        decode_ack(data)
    except Exception as error:
        raise FindingError(f"{error!r} of the envelope {data.hex()}") from error
    if found is None:
        return "plain"
    if not isinstance(found, Published) or data[:4] != MAGIC:
        raise FindingError(f"{found!r} of {data.hex()}")
    back = api_messages.Message(value=found.value, key=found.key, headers=found.headers)
    if decode(data[:5] + b"\x08\0\0" + back.SerializeToString()) is None:
        raise FindingError(f"what {data.hex()} says cannot be said")
    return "envelope"


def read_requests(pieces: list[bytes]) -> tuple[list[object], str]:
    requests, found = Requests(PAYLOAD_MAX), list[object]()
    try:
        for piece in pieces:
            requests.feed(piece)
            while (request := requests.take()) is not None:
                found.append(request)
            limit = CONTROL_LINE_BYTES_MAX + PAYLOAD_MAX + 2
            if requests.waiting_bytes > limit:
                raise FindingError(f"{requests.waiting_bytes} bytes wait")
    except NatsError as error:
        return found, str(error)
    return found, ""


def check_requests(data: bytes, dice: random.Random) -> str:
    """How it ends."""
    try:
        whole = read_requests([data])
        pieces, at = list[bytes](), 0
        while at < len(data):
            size = dice.choice((1, 2, 5, 40, 4_000))
            pieces.append(data[at : at + size])
            at += size
        again = read_requests(pieces)
    except FindingError:
        raise
    except Exception as error:
        raise FindingError(f"{error!r} of the requests {data!r}") from error
    if whole != again:
        raise FindingError(f"{data!r} is {whole}, in pieces {again}")
    return whole[1] or "requests"


def fuzz(inputs: int, seed: int, report: Callable[[str], None] = print) -> Counter[str]:
    """How many of each kind. FindingError."""
    dice, kinds = random.Random(seed), Counter[str]()
    began_s = time.monotonic()
    for number in range(1, inputs + 1):
        if number % 2:
            kinds[check_envelope(mutated(dice.choice(ENVELOPES), dice))] += 1
        else:
            said = b"".join(dice.choice(REQUESTS) for _ in range(dice.randrange(1, 4)))
            kinds[check_requests(mutated(said, dice), dice)] += 1
        if number % _PROGRESS_EVERY == 0:
            report(f"{number:,} inputs, {number / (time.monotonic() - began_s):,.0f} a second")
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    for kind, count in fuzz(options.inputs, options.seed).most_common():
        print(f"{count:12,} {kind}")


if __name__ == "__main__":
    main()
