"""One vocabulary of durations; an expiry that removes messages by mistake is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.cli.durations import DAY_US, NEVER, duration_us, expiry_us, token_expiry_us
from shardd.cli.remote import CommandError
from shardd.client import SyncClient
from tests.cli.transcript import Shell
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving


def fill(server: Server) -> None:
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
        client.create_stream("s")
        client.create_topic("s", "t", expiry_us=NEVER)


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Shell:
    return Shell(server.address, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90_000_000), ("7d", 7 * DAY_US), ("1h30m", 5_400_000_000), ("500ms", 500_000), ("1.5h", 5_400_000_000)],
)
def test_duration_is_read(text: str, expected: int) -> None:
    assert duration_us(text) == expected


@given(
    st.text(max_size=12) | st.sampled_from(["", "1", "h", "-1h", "1 h", "1e3s", "inf", "nans", "99999999999w", "١s"])
)
def test_other_text_is_one_sentence(text: str) -> None:
    try:
        assert 0 <= duration_us(text) <= 36_500 * DAY_US
    except CommandError as error:
        assert error.status == 2 and str(error).startswith(repr(text))


def test_expiry_below_a_second_needs_force_and_zero_is_refused() -> None:
    assert expiry_us("500ms", force=True) == 500_000
    assert (expiry_us("never", force=False), expiry_us("default", force=False)) == (NEVER, 0)
    for text, force in (("500ms", False), ("0s", False), ("0s", True), ("0.0001ms", True), ("0", True)):
        with pytest.raises(CommandError):
            expiry_us(text, force=force)


@pytest.mark.parametrize("days", [1e-12, 1e-6, -1.0, 1e300, float("inf"), float("nan")])
def test_token_expiry_that_would_round_to_never_is_refused(days: float) -> None:
    with pytest.raises(CommandError):
        token_expiry_us(days)


def test_token_with_a_tiny_expiry_is_refused(shell: Shell) -> None:
    said = shell.run("shardd token create t --expiry-days 1e-12")
    assert said == "shardd: --expiry-days 1e-12 is refused: write 0 (never), or 0.00002 to 36500\n[2]\n"
    assert shell.run("shardd login --expiry-days 1e-12 -u iggy --password-stdin", "iggy\n") == said


@pytest.mark.parametrize("words", ["--expiry 0s", "--expiry 500ms", "--expiry ''", "--max-size 0", "--name ''", ""])
def test_topic_update_that_changes_nothing_says_so(shell: Shell, words: str) -> None:
    with SyncClient(f"shardd://iggy:iggy@{shell.address}") as client:
        before = client.topic("s", "t")
        said = shell.run(f"shardd topic update s t {words}")
        assert said.startswith("shardd: ") and said.endswith("[2]\n") and said.count("\n") == 2
        assert client.topic("s", "t") == before


def test_topic_update_shows_the_servers_default_as_default(shell: Shell) -> None:
    shell.run("shardd topic create s defaulted --expiry 1h30m")
    assert "5400 s" in shell.run("shardd topic list s")
    shell.run("shardd topic update s defaulted --expiry default")
    [row] = [line for line in shell.run("shardd topic list s").splitlines() if "defaulted" in line]
    assert " default " in row and "never" not in row
    assert "message expiry                     default\n" in shell.run("shardd topic get s defaulted")


def test_topic_update_keeps_what_it_does_not_say(shell: Shell) -> None:
    shell.run("shardd topic create s kept --expiry 7d --max-size 10GiB")
    with SyncClient(f"shardd://iggy:iggy@{shell.address}") as client:
        before = client.topic("s", "kept")
        assert before is not None
        shell.run("shardd topic update s kept --name renamed")
        assert client.topic("s", "renamed") == replace(before, name="renamed")
