"""retention.clock (docs/formats.md#retention-clock): both versions are read, and nothing else is believed."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
import xxhash

from shardd.maintenance.clock_memory import FILE_NAME, Recalled, encode, recalled, remember
from shardd.runtime.boot import boot_text

SECOND_US = 1_000_000
THEN_US = 1_700_000_000 * SECOND_US
AWAY_US = 90 * SECOND_US
OTHER_BOOT = b"0" * 36
VERSION_1 = bytes.fromhex("53485244434c4b3100401e18240a06002a00000000000000") + OTHER_BOOT
VERSION_1 += bytes.fromhex("379c010597e534b5")
SLOWNESS_US = 60 * SECOND_US
DOUBTS = struct.pack("<8Q", THEN_US - 5, THEN_US - 3, *[0] * 6)


def since_boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def version_1(boot: bytes, since_us: int) -> bytes:
    """As earlier versions wrote it."""
    body = b"SHRDCLK1" + struct.pack("<QQ", THEN_US, since_us) + boot
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def written(data: Path, content: bytes) -> Path:
    (data / FILE_NAME).write_bytes(content)
    return data


def assert_gone_on(now_us: int) -> None:
    """From what was known when it was written, `AWAY_US` ago."""
    assert THEN_US + AWAY_US <= now_us < THEN_US + AWAY_US + SLOWNESS_US


def test_a_file_of_version_1_after_a_boot_says_what_is_believed_and_leaves_stamps(tmp_path: Path) -> None:
    assert recalled(written(tmp_path, VERSION_1)) == Recalled(THEN_US)


def test_a_file_of_version_1_of_this_boot_leaves_stamps_to_the_wall_clock(tmp_path: Path) -> None:
    then_us = since_boot_us() - AWAY_US
    found = recalled(written(tmp_path, version_1(boot_text(), then_us)))
    assert_gone_on(found.now_us())
    assert found == Recalled(THEN_US, since_boot_us=then_us)


def test_a_file_of_this_version_goes_on_with_all_that_was_known(tmp_path: Path) -> None:
    known = Recalled(THEN_US, THEN_US + 7, 11, 0, DOUBTS, since_boot_us() - AWAY_US)
    found = recalled(written(tmp_path, encode(known, boot_text(), known.since_boot_us)))
    assert_gone_on(found.now_us())
    assert found == known  # a doubt goes on meanwhile: all of it is of that moment


def test_doubts_that_have_ended_are_known_after_a_boot(tmp_path: Path) -> None:
    known = Recalled(THEN_US, THEN_US + 7, 11, 12, DOUBTS)
    assert recalled(written(tmp_path, encode(known, OTHER_BOOT, 42))) == Recalled(THEN_US, doubts=DOUBTS)


def test_what_is_remembered_is_recalled(tmp_path: Path) -> None:
    remember(tmp_path, Recalled(THEN_US, THEN_US, doubts=DOUBTS))
    found = recalled(tmp_path)
    assert 0 <= found.now_us() - THEN_US < SLOWNESS_US
    assert found == Recalled(THEN_US, THEN_US, doubts=DOUBTS, since_boot_us=found.since_boot_us)


def test_what_is_written_late_is_of_the_moment_at_which_it_was_known(tmp_path: Path) -> None:
    """The thread that writes may wait long for its turn: the next start would doubt the clock for as long."""
    known = Recalled(THEN_US, THEN_US, since_boot_us=since_boot_us() - AWAY_US)
    remember(tmp_path, known)
    assert recalled(tmp_path) == known
    assert_gone_on(known.now_us())


@pytest.mark.parametrize("content", [VERSION_1, encode(Recalled(THEN_US), OTHER_BOOT, 42)])
def test_a_file_that_is_not_whole_is_ignored(tmp_path: Path, content: bytes) -> None:
    others = [content[:end] for end in range(len(content))]
    others += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]
    others += [content + b"\0", bytes(len(content))]
    for other in others:
        assert recalled(written(tmp_path, other)) == Recalled()


def test_a_file_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    body = encode(Recalled(THEN_US), OTHER_BOOT, 42)[:-8].replace(b"SHRDCLK2", b"SHRDCLK3")
    content = body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    assert recalled(written(tmp_path, content)) == Recalled()


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert recalled(tmp_path) == Recalled()
