"""What lies beside a log never decides whether the log can be read: a partition opens whatever the disk says of its
producers, stored offsets, ids, index, manifests or marker of an import."""

from __future__ import annotations

import errno

import pytest

from tests.crash.opened import DEDUPLICATION, MESSAGES, Left
from tests.server.test_message_deduplication import identified, stored
from tests.support import wire


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The same, of a topic that compares ids."""
    return Left(tmp_path_factory.mktemp("compared"), DEDUPLICATION)


def test_ids_in_a_segment_that_cannot_be_read_cost_ids_and_no_message(compared: Left) -> None:
    compared.fresh()
    segments = sorted(compared.partition.glob("*.log"))
    assert len(segments) >= 4
    bad = segments[-3]
    behind = int(segments[-2].stem)
    compared.control.arm("read", f"{bad.name}$", 1, errno.EIO, for_ever=True)
    with compared.opened() as root:
        for known in range(behind, MESSAGES):  # the window begins behind what cannot be read
            root.send("s", "t", wire.to_partition(0), [identified(known)])
        root.send("s", "t", wire.to_partition(0), [identified(MESSAGES)])
        answer = root.poll("s", "t", 0, value=behind, count=1000)
        assert [int(each.payload) for each in answer.messages] == list(range(behind, MESSAGES + 1))
        assert root.poll("s", "t", 0, value=0, count=10).messages[0].offset == 0
        compared.control.disarm()
        assert stored(root) == list(range(MESSAGES + 1))
    assert "read only" not in compared.server.log()
