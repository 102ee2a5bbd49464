"""Check of `shardd doctor`: certificates and keys, when there is TLS."""

from __future__ import annotations

import time

from shardd.cli.doctor_report import Finding, ok, problem, warning
from shardd.config.schema import Settings
from shardd.server.tls_files import TlsError, certificate_names, expiry_sentences, read_material


def tls_findings(settings: Settings) -> list[Finding]:
    tls = settings.tcp.tls
    if tls.wanted_mode == "off":
        return []
    try:
        _material, ends = read_material(tls)
    except ImportError:
        return []  # told by the check of the engine
    except TlsError as error:
        return [problem("tls", str(error), "the server cannot start")]
    names = certificate_names(tls)
    sentences = expiry_sentences(names, ends, time.time())
    if sentences:
        return [warning("tls", sentence, "renew it, then `shardd tls reload`") for sentence in sentences]
    days = int((min(ends) - time.time()) // 86_400)
    return [ok("tls", f"{tls.wanted_mode}, {len(names)} certificates", f"the first of them expires in {days} days")]
