"""Certificates and keys of the supervisor: read, judged before a worker sees them, read again when somebody asks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import astuple

from shardd.config.schema import Tls
from shardd.runtime.tls_material import CLIENTS, TICKET_PERIOD_S, TlsMaterial, TlsState, new_tickets, write_state

PEM_BYTES_MAX: Final = 1 << 20
WARN_BEFORE_S: Final = 30 * 86_400
_DAY_S: Final = 86_400
_log = logging.getLogger(__name__)


class CertificateError(Exception):
    """Certificates or keys that cannot be used for TLS; the text is a sentence."""


class ReadTls(msgspec.Struct, frozen=True):
    """What the files of all ports hold. `names` for sentences and `ends_s` (unix time): of each certificate once."""

    ports: dict[str, TlsMaterial]
    names: list[str]
    ends_s: list[int]

    def sentences(self, now_s: float) -> list[str]:
        """About certificates that end soon, or have ended."""
        return list(dict.fromkeys(expiry_sentences(self.names, self.ends_s, now_s)))

    def check_ends(self, now_s: float) -> None:
        """CertificateError when one has ended."""
        for name, end_s in zip(self.names, self.ends_s, strict=True):
            if end_s <= now_s:
                raise CertificateError(f"{name} has expired")


def read_tls(ports: Mapping[str, Tls]) -> ReadTls:
    """`ports`: Settings.tls_of_ports. CertificateError."""
    read = ReadTls({}, [], [])
    for section, tls in ports.items():
        try:
            material, ends_s = _read_material(tls)
        except CertificateError as error:
            raise CertificateError(f"{section}: {error}") from None
        read.ports[section] = material
        read.names.extend(_name(tls, pair) for pair in range(len(ends_s)))
        read.ends_s.extend(ends_s)
    return read


def _read_material(tls: Tls) -> tuple[TlsMaterial, list[int]]:
    from shardd.engine import _native

    pairs = [_native.tls_self_signed()] if not tls.cert_file else []
    pairs += [(_read("certificate", certificate), _read("key", key)) for certificate, key in tls.files]
    clients_ca = _read("certificate", tls.client_ca_file) if tls.client_certificates != "off" else b""
    material = TlsMaterial(pairs, CLIENTS[tls.client_certificates], clients_ca, tls.min_version == "1.3", tls.ciphers)
    try:
        return material, _native.tls_inspect(*astuple(material))
    except ValueError as error:
        why, pair = error.args if len(error.args) == 2 else (str(error), None)
        raise CertificateError(f"{_name(tls, pair)}: {why}" if pair is not None else why) from None


def _name(tls: Tls, pair: int) -> str:
    files = tls.files if tls.cert_file else (("the self-signed certificate", ""), *tls.files)
    return f"certificate {files[pair][0]}"


def _read(what: str, path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(f"{what} {path}: {error.strerror}") from None
    if len(data) > PEM_BYTES_MAX:
        raise CertificateError(f"{what} {path}: larger than 1 MiB")
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


class TlsKeeper:
    """What the workers of a supervisor show to clients. `fd` is inherited by them; -1 without TLS."""

    def __init__(self, ports: Mapping[str, Tls]) -> None:
        """`ports`: Settings.tls_of_ports. CertificateError."""
        self.fd = -1
        self._ports = ports
        self._look_at_s = 0.0
        if not ports:
            return
        self._read = read_tls(ports)
        self._tickets = new_tickets()
        self.fd = os.memfd_create("shardd-tls", os.MFD_CLOEXEC)
        self._write()
        for section, tls in ports.items():
            if tls.wanted_mode == "both":
                _log.warning("%s.mode is both: who connects without TLS sends passwords in clear", section)
            if not tls.cert_file:
                _log.warning("%s: the certificate is self-signed: clients cannot tell who answers them", section)

    def reload(self) -> bool:
        """Reads the files again. False: they stay as they were, and the log says why."""
        try:
            read = read_tls(self._ports)
            read.check_ends(time.time())
        except CertificateError as error:
            _log.error("the certificates stay as they were: %s", error)
            return False
        self._read = self._with_self_signed(read)
        self._write()
        self._look_at_s = 0.0
        _log.info("certificates were read again: %d", len(read.names))
        return True

    def _write(self) -> None:
        write_state(self.fd, TlsState(self._read.ports, self._tickets, self._read.ends_s))

    def _with_self_signed(self, read: ReadTls) -> ReadTls:
        """They are made once: each port keeps its own."""
        ports, ends_s, at = dict(read.ports), list(read.ends_s), 0
        for section, material in read.ports.items():
            if not self._ports[section].cert_file:
                first = self._read.ports[section].pairs[0]
                ports[section] = msgspec.structs.replace(material, pairs=[first, *material.pairs[1:]])
                ends_s[at] = self._read.ends_s[at]
            at += len(material.pairs)
        return ReadTls(ports, read.names, ends_s)

    def look(self, now_s: float) -> None:
        """Now and then: the secret of tickets follows the time, and once a day the end of certificates is told."""
        if self.fd < 0:
            return
        if int(now_s) // TICKET_PERIOD_S > self._tickets.period:
            self._tickets = self._tickets.followed(now_s)
            self._write()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _DAY_S
        for sentence in self._read.sentences(now_s):
            _log.warning("%s", sentence)
