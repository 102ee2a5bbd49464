"""What the door shows to clients over TLS, and whether they must show something: other certificates as soon as the
supervisor has read some."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import grpc

from shardd.doors.door import Door
from shardd.doors.tls import shown_material
from shardd.runtime.tls_material import TlsMaterial

_Fetch = Callable[[], grpc.ServerCertificateConfiguration]
"""The types of the library omit the None of `_Shown.fetch`."""
_log = logging.getLogger(__name__)


def server_credentials(door: Door, section: str, count: int) -> list[grpc.ServerCredentials]:
    """For so many servers. Connections that are there keep theirs. ValueError: what is to be shown cannot be read."""
    material = shown_material(door.tls_fd, section)  # once: it may change between two looks
    shown = [_Shown() for _ in range(count)]

    def load_again() -> None:
        try:
            changed = shown_material(door.tls_fd, section)
            newer = [_configuration(changed) for _ in shown]  # for all, or for nobody; the library keeps each
        except (OSError, ValueError) as error:
            _log.error("the certificate stays as it was: %s", error)
            return
        for each, configuration in zip(shown, newer, strict=True):
            each.newer[:] = [configuration]

    door.tls_changed = load_again
    must_show = bool(material.clients)
    return [
        grpc.dynamic_ssl_server_credentials(
            _configuration(material), cast(_Fetch, each.fetch), require_client_authentication=must_show
        )
        for each in shown
    ]


class _Shown:
    """What one server shows from the next handshake on."""

    def __init__(self) -> None:
        self.newer: list[grpc.ServerCertificateConfiguration] = []

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """For each handshake, in a thread of the library. None: what it has is the newest."""
        return self.newer.pop() if self.newer else None


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    chain, key = material.pairs[0]
    return grpc.ssl_server_certificate_configuration([(key, chain)], material.clients_ca or None)
