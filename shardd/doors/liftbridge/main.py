"""The process of the door for Liftbridge. Only the supervisor starts it."""

from __future__ import annotations

import os
from typing import Final

from shardd.doors.door import Door
from shardd.doors.liftbridge.options import decode_options
from shardd.doors.tls import shown_material

SECTION: Final = "liftbridge.tls"
_ONLY_13: Final = "ECDHE-PSK-CHACHA20-POLY1305"  # nobody can use it: a client that has no TLS 1.3 finds nothing


async def serve(door: Door) -> None:
    options = decode_options(door.options)
    os.environ["GRPC_VERBOSITY"] = "NONE"  # what strangers send is no line of the log
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    if options.liftbridge.tls.enabled:
        material = shown_material(door.tls_fd, SECTION)
        os.environ["GRPC_SSL_CIPHER_SUITES"] = _ONLY_13 if material.only_13 else material.ciphers
    from shardd.doors.liftbridge.serving import serve_clients  # the library reads its environment when it is loaded

    await serve_clients(door, options)
