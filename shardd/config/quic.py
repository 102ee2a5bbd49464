"""`quic.*`: values, and what they may not say together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from shardd.config.schema import Settings

DATAGRAM_BYTES_MIN: Final = 1200  # what every path carries that QUIC may take
DATAGRAM_BYTES_MAX: Final = 65_000


class QuicCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`quic.certificate.*`. Without files those of TCP; where there are none either, a new one at each start."""

    self_signed: bool
    cert_file: str
    key_file: str


class Quic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`quic.*`: the door for QUIC. `address` as that of TCP, over UDP. `receive_window_bytes`: what a client may send
    ahead without asking. `cpus` as those of HTTP. `keep_alive_interval_ms` 0: the server sends nothing by itself."""

    enabled: bool
    address: str
    cpus: str
    max_concurrent_bidi_streams: int
    receive_window_bytes: int
    initial_mtu_bytes: int
    keep_alive_interval_ms: int
    max_idle_timeout_ms: int
    certificate: QuicCertificate


def check(settings: Settings) -> list[str]:
    """Sentences about keys that do not fit each other."""
    quic = settings.quic
    if quic.enabled and quic.keep_alive_interval_ms >= quic.max_idle_timeout_ms:
        return ["quic.keep_alive_interval: not shorter than quic.max_idle_timeout"]
    return []
