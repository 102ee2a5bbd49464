"""What a door shows to clients over TLS: the certificate that the supervisor has read, again whenever it has."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import Final

from shardd.doors.door import Door
from shardd.runtime.tls_material import TlsMaterial, read_state

_TRIES: Final = 50  # it is being written while it is read
_PAUSE_S: Final = 0.02
_log = logging.getLogger(__name__)


def tls_context(door: Door, section: str, shows: Callable[[bytes], None]) -> ssl.SSLContext:
    """New connections get other certificates as soon as there are some. `shows(chain)`: what they get from now on."""
    material = shown_material(door.tls_fd, section)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if material.only_13 else ssl.TLSVersion.TLSv1_2
    context.set_ciphers(material.ciphers)
    context.set_alpn_protocols(["http/1.1"])
    _load(context, material, shows)

    def load_again() -> None:
        try:
            _load(context, shown_material(door.tls_fd, section), shows)
        except (OSError, ValueError) as error:
            _log.error("the certificate stays as it was: %s", error)

    door.tls_changed = load_again
    return context


def shown_material(fd: int, section: str) -> TlsMaterial:
    for _ in range(_TRIES):
        state = read_state(fd)
        if state is not None:
            return state.ports[section]
        time.sleep(_PAUSE_S)
    raise ValueError("what is to be shown cannot be read")


def _load(context: ssl.SSLContext, material: TlsMaterial, shows: Callable[[bytes], None]) -> None:
    """Python takes names of files only: one that nobody else can reach."""
    chain, key = material.pairs[0]
    fd = os.memfd_create("shardd-certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, key + b"\n" + chain)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    shows(chain)
