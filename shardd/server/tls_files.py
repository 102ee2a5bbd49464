"""Certificates and keys of the supervisor: read, judged before a worker sees them, read again when somebody asks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardd.config.schema import Tls
from shardd.runtime.tls_material import CLIENTS, TICKET_PERIOD_S, TlsMaterial, TlsState, new_tickets, write_state

PEM_BYTES_MAX: Final = 1 << 20
WARN_BEFORE_S: Final = 30 * 86_400
_DAY_S: Final = 86_400
_log = logging.getLogger(__name__)


class TlsError(Exception):
    """Why there is no TLS with these files; the text is a sentence."""


def read_material(tls: Tls) -> tuple[TlsMaterial, list[int]]:
    """What the files hold, and when each certificate ends (unix time). TlsError."""
    from shardd.engine import _native

    pairs = [_self_signed()] if not tls.cert_file else []
    pairs += [(_read("certificate", certificate), _read("key", key)) for certificate, key in tls.files]
    clients_ca = _read("certificate", tls.client_ca_file) if tls.client_certificates != "off" else b""
    material = TlsMaterial(pairs, CLIENTS[tls.client_certificates], clients_ca, tls.min_version == "1.3", tls.ciphers)
    try:
        ends = _native.tls_inspect(
            material.pairs, material.clients, material.clients_ca, material.only_13, material.ciphers
        )
    except ValueError as error:
        why, pair = error.args if len(error.args) == 2 else (str(error), None)
        name = _name(tls, pair) if pair is not None else ""
        raise TlsError(f"{name}: {why}" if name else why) from None
    return material, ends


def _self_signed() -> tuple[bytes, bytes]:
    from shardd.engine import _native

    return _native.tls_self_signed()


def _name(tls: Tls, pair: int) -> str:
    files = tls.files if tls.cert_file else (("the self-signed certificate", ""), *tls.files)
    return f"certificate {files[pair][0]}"


def _read(what: str, path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{what} {path}: {error.strerror}") from None
    if len(data) > PEM_BYTES_MAX:
        raise TlsError(f"{what} {path}: larger than 1 MiB")
    return data


def expiry_sentences(names: Sequence[str], ends_s: Sequence[int], now_s: float) -> list[str]:
    """About certificates that end within 30 days, or have ended."""
    sentences = []
    for name, end_s in zip(names, ends_s, strict=True):
        days = int((end_s - now_s) // _DAY_S)
        if end_s <= now_s:
            sentences.append(f"{name} has expired")
        elif end_s - now_s < WARN_BEFORE_S:
            sentences.append(f"{name} expires in {days} days" if days > 0 else f"{name} expires today")
    return sentences


def certificate_names(tls: Tls) -> list[str]:
    """For sentences, in the order of the material."""
    return [_name(tls, pair) for pair in range(len(tls.files) + (not tls.cert_file))]


class TlsKeeper:
    """What the workers of a supervisor show to clients. `fd` is inherited by them; -1 without TLS."""

    def __init__(self, tls: Tls) -> None:
        """TlsError."""
        self.fd = -1
        self._tls = tls
        self._look_at_s = 0.0
        if tls.wanted_mode == "off":
            return
        material, ends = read_material(tls)
        self._state = TlsState(material, new_tickets(), ends)
        self.fd = os.memfd_create("shardd-tls", os.MFD_CLOEXEC)
        write_state(self.fd, self._state)
        if tls.wanted_mode == "both":
            _log.warning("tcp.tls.mode is both: who connects without TLS sends passwords in clear")
        if not tls.cert_file:
            _log.warning("the certificate of TLS is self-signed: clients cannot tell who answers them")

    def reload(self) -> bool:
        """Reads the files again. False: they stay as they were, and the log says why."""
        if self.fd < 0:
            _log.warning("there is nothing to reload: TLS is off")
            return False
        try:
            material, ends = read_material(self._tls)
            if any(end_s <= time.time() for end_s in ends):
                raise TlsError(expiry_sentences(certificate_names(self._tls), ends, time.time())[0])
        except TlsError as error:
            _log.error("the certificates stay as they were: %s", error)
            return False
        if not self._tls.cert_file:  # a self-signed one is made once
            material, ends = self._with_first(material, ends)
        self._state = TlsState(material, self._state.tickets, ends)
        write_state(self.fd, self._state)
        self._look_at_s = 0.0
        _log.info("certificates were read again: %d", len(material.pairs))
        return True

    def _with_first(self, material: TlsMaterial, ends: list[int]) -> tuple[TlsMaterial, list[int]]:
        old = self._state
        pairs = [old.material.pairs[0], *material.pairs[1:]]
        changed = TlsMaterial(pairs, material.clients, material.clients_ca, material.only_13, material.ciphers)
        return changed, [old.not_after_s[0], *ends[1:]]

    def look(self, now_s: float) -> None:
        """Now and then: the secret of tickets follows the time, and once a day the end of certificates is told."""
        if self.fd < 0:
            return
        if int(now_s) // TICKET_PERIOD_S > self._state.tickets.period:
            state = self._state
            self._state = TlsState(state.material, state.tickets.followed(now_s), state.not_after_s)
            write_state(self.fd, self._state)
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _DAY_S
        for sentence in expiry_sentences(certificate_names(self._tls), self._state.not_after_s, now_s):
            _log.warning("%s", sentence)
