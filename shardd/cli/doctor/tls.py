"""Check of `shardd doctor`: certificates and keys of a server with TLS."""

from __future__ import annotations

import time

from shardd.cli.doctor.report import Finding, ok, problem, warning
from shardd.config.schema import Settings
from shardd.server.tls_files import CertificateError, read_tls


def tls_findings(settings: Settings) -> list[Finding]:
    ports = settings.all_tls
    if not ports:
        return []
    try:
        read = read_tls(ports)
    except ImportError:
        return []  # told by the check of the engine
    except CertificateError as error:
        return [problem("tls", str(error), "the server cannot start")]
    now_s = time.time()
    sentences = read.sentences(now_s)
    if sentences:
        return [warning("tls", sentence, "renew it, then `shardd tls reload`") for sentence in sentences]
    modes = ", ".join(f"{section} {tls.wanted_mode}" for section, tls in ports.items())
    days = int((min(read.ends_s) - now_s) // 86_400)
    return [ok("tls", f"{modes}; {len(read.names)} certificates", f"the first of them expires in {days} days")]
