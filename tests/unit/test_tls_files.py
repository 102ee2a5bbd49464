"""Certificates of the supervisor: what is told of their end, what workers get, how the secret of tickets moves on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardd.cli.doctor.report import Level
from shardd.cli.doctor.tls import tls_findings
from shardd.config.loader import load_settings
from shardd.runtime.tls_material import TICKET_PERIOD_S, Tickets, read_state
from shardd.server.tls_files import TlsKeeper, expiry_sentences
from tests.support.certificates import Authority, settings

DAY_S = 86_400


def test_an_end_is_told_thirty_days_ahead() -> None:
    now_s = 1_000 * DAY_S
    ends = [now_s + 31 * DAY_S, now_s + 29 * DAY_S, now_s + 100, now_s - 1]
    assert expiry_sentences(["a", "b", "c", "d"], ends, now_s) == [
        "b expires in 29 days",
        "c expires today",
        "d has expired",
    ]


def test_the_doctor_looks_at_the_files(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)

    def level(certificate: Path) -> list[Level]:
        return [each.level for each in tls_findings(load_settings(None, settings(certificate)).settings)]

    assert level(authority.sign("long", days=90)) == [Level.OK]
    assert level(authority.sign("short", days=10)) == [Level.WARNING]
    assert level(tmp_path / "missing.pem") == [Level.PROBLEM]
    assert tls_findings(load_settings(None, {}).settings) == []


def test_a_secret_of_tickets_moves_on_in_any_steps() -> None:
    first = Tickets(bytes(32), 10)
    late = first.followed(13 * TICKET_PERIOD_S)
    assert late == first.followed(11 * TICKET_PERIOD_S).followed(13 * TICKET_PERIOD_S + 1)
    assert late.secret != first.secret
    assert late.followed(0) == late  # a clock that goes back


def test_workers_get_what_was_good_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority.make(tmp_path)
    certificate = authority.sign("kept", days=90)
    keeper = TlsKeeper(load_settings(None, settings(certificate)).settings.tls_of_ports)
    before = read_state(keeper.fd)
    assert before is not None
    certificate.write_text("rubbish")
    assert not keeper.reload()
    assert read_state(keeper.fd) == before
    authority.sign("kept", days=80)
    assert keeper.reload()
    after = read_state(keeper.fd)
    assert after is not None
    assert after.ports != before.ports and after.tickets == before.tickets
    os.pwrite(keeper.fd, b"x", 40)  # half written
    assert read_state(keeper.fd) is None
    os.close(keeper.fd)
