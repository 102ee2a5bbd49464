"""Certificates for tests, made by the openssl program: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self


def run(*command: str, text: str = "") -> str:
    done = subprocess.run(["openssl", *command], input=text.encode(), capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


class Authority:
    """`certificate`: what its clients trust."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"

    @classmethod
    def make(cls, directory: Path, name: str = "authority") -> Self:
        made = cls(directory, name)
        run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "10"),
            *("-subj", f"/CN={name}", "-keyout", str(made._key), "-out", str(made.certificate)),
        )
        return made

    def sign(self, name: str, *, names: str = "", subject: str = "", days: int = 10, algorithm: str = "ec") -> Path:
        """NAME.pem with `names` (as subjectAltName), and NAME.key beside it. `days` below 0: it has expired."""
        key, request, made = (self._directory / f"{name}{suffix}" for suffix in (".key", ".csr", ".pem"))
        how = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256") if algorithm == "ec" else ("-newkey", algorithm)
        run("req", *how, "-nodes", "-subj", f"/CN={subject or name}", "-keyout", str(key), "-out", str(request))
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n" if names else "")
        run(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions), "-out", str(made)),
        )
        return made


def settings(certificate: Path, **others: str) -> dict[str, str]:
    """Variables of a server with this certificate; `others` by the rest of their name."""
    own = {"mode": "required", "cert_file": str(certificate), "key_file": str(certificate.with_suffix(".key"))}
    return {f"SHARDD_TCP_TLS_{name.upper()}": value for name, value in (own | others).items()}
