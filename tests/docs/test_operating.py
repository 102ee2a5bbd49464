"""The recipes of docs/operating.md that are commands to copy: they run as they stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.docs.pages import Reader, blocks_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "operating.md"
PING: Final = "```console\n$ shardd ping --address 'shardd+tls://127.0.0.1:8090?ca_file=broker.pem'\n```\n"


def section(title: str) -> str:
    _, _, rest = PAGE.read_text().partition(f"\n## {title} ")
    return rest.partition("\n## ")[0]


def test_tls_is_there_after_five_commands_and_its_certificate_is_replaced(tmp_path: Path) -> None:
    start, rotation = blocks_of(section("TLS"))
    assert len(start.text.replace("\\\n", "").splitlines()) == 5
    reader = Reader(tmp_path)
    reader.variables["SHARDD_TCP_ADDRESS"] = "127.0.0.1:0"  # of the doctor, whoever has the usual one
    pinged = [shown for shown, _ in reader.follow(f"```sh\n{start.text}```\n{PING}```sh\n{rotation.text}```\n{PING}")]
    assert len(pinged) == 2
    for shown in pinged:  # the second time it trusts nobody but the new certificate
        assert shown.endswith("ca_file=broker.pem'\nADDRESS answers, N ms\n"), shown
