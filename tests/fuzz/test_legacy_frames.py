"""Mutated frames of every command of the earlier generations against a running server; `make fuzz` is the long form."""

from __future__ import annotations

import re
import secrets
import struct
from pathlib import Path

import pytest

from shardd.protocol.codes import Code
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.lanes import FindingError
from tests.fuzz.legacy import FUZZED, generation_of_clients, templates_of
from tests.fuzz.mutator import Mutator
from tests.fuzz.settings import SETTINGS
from tests.fuzz.watch import Watch
from tests.support import wire
from tests.support.server import Server

FRAMES = 20_000
SECONDS_MAX = 8.0
GROWTH_MAX_BYTES = 384 << 20
SHORT = ("0.1.0", "0.6.31", "0.7.0")


@pytest.mark.parametrize(
    "release", [release if release in SHORT else pytest.param(release, marks=pytest.mark.slow) for release in FUZZED]
)
def test_mutated_frames_of_an_earlier_generation_are_answered(release: str, tmp_path: Path) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    with Server(tmp_path / "data", env=SETTINGS) as server:
        watch = Watch(server, GROWTH_MAX_BYTES)
        try:
            fuzzer = Fuzzer(server, seed, watch, generation=generation_of_clients(release))
            totals = fuzzer.run(FRAMES, SECONDS_MAX).totals
        finally:
            watch.close()
    assert totals.statuses[0] > totals.frames // 200, "hardly any frame gets past the checks"
    assert len(totals.statuses) > 12, "the frames reach too few checks"


def test_every_command_of_every_generation_has_a_template() -> None:
    for release in FUZZED:
        assert {template.code for template in templates_of(generation_of_clients(release))} >= set(Code)


@pytest.mark.parametrize(
    ("release", "behind"), [("0.6.31", b""), ("0.4.4", struct.pack("<I", 5) + b"other" + bytes(4))]
)
def test_no_lane_becomes_one_of_which_it_is_open_whether_it_reads_bodies(release: str, behind: bytes) -> None:
    """That is classic after a login with some version, and told nothing by the next one."""
    login = wire.frame(Code.LOGIN_USER, b"\4iggy\4iggy" + behind)
    generation = generation_of_clients(release)
    is_versioned = generation.has(0, 5, 0)
    for versioned, sent in ((is_versioned, False), (not is_versioned, True)):
        mutator = Mutator("1", templates_of(generation), [login] * 100_000, is_versioned=versioned)
        assert (login in [mutator.next() for _ in range(3000)]) is sent


def test_make_fuzz_takes_every_release() -> None:
    text = (Path(__file__).parents[2] / "Makefile").read_text()
    found = re.search(r"^FUZZ_RELEASES \?= (.*)$", text, re.MULTILINE)
    assert found is not None and tuple(found[1].split()) == FUZZED


def test_a_status_of_another_generation_is_found(tmp_path: Path) -> None:
    """Canary: lanes that believe to be classic find bodies of refusals."""
    with Server(tmp_path / "data", env=SETTINGS) as server:
        watch = Watch(server, GROWTH_MAX_BYTES)
        fuzzer = Fuzzer(server, 1, watch, generation=generation_of_clients("0.6.31"))
        for lane in fuzzer.lanes:
            lane.expects_texts = False
        try:
            with pytest.raises(FindingError, match="with a payload"):
                fuzzer.run(FRAMES, 60.0)
        finally:
            watch.close()
