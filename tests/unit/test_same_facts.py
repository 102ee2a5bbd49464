"""What is said twice says the same: numbers of the native core against the protocol and the twin in Python, which are
specifications of their own and import nothing of the core.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from shardd.config.keys import ACK_LEVELS
from shardd.engine import _native, twin_record
from shardd.log import record_format, stored_offsets
from shardd.protocol import limits
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import ConsumerKind, PollingKind
from shardd.worker.partitions import LEVELS

NATIVE = Path(__file__).parents[2] / "native" / "src"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def named_numbers(prefix: str) -> dict[str, int]:
    """Enumerators of the core with an explicit number, and macros that are one."""
    pattern = re.compile(rf"\b{prefix}_([A-Z0-9_]+)(?:\s*=\s*|\s+)(0x[0-9a-f]+|[0-9]+)u?\b")
    found: dict[str, int] = {}
    for path in sorted(NATIVE.rglob("*.[ch]")):
        for name, number in pattern.findall(_COMMENT.sub("", path.read_text())):
            assert found.setdefault(name, int(number, 0)) == int(number, 0), f"{prefix}_{name} has two numbers"
    return found


def test_statuses_of_the_core_are_in_the_one_taxonomy() -> None:
    known = {int(each) for each in Status}
    core = named_numbers("STATUS")
    assert len(core) >= 15 and set(core.values()) <= known
    partition = {name: number for name, number in named_numbers("PARTITION").items() if number > 2}
    assert len(partition) >= 10 and set(partition.values()) <= known


def test_commands_of_the_core_have_the_codes_of_the_protocol() -> None:
    core = named_numbers("CODE")
    assert len(core) >= 5
    known = {each.name: int(each) for each in (*Code, *ExtensionCode)}
    assert {name: known.get(name) for name in core} == core


def test_kinds_of_polls_and_consumers_are_those_of_the_wire() -> None:
    assert {each.name: int(each) for each in PollingKind}.items() <= named_numbers("POLL").items()
    assert (_native.OFFSET_CONSUMER, _native.OFFSET_GROUP) == (ConsumerKind.CONSUMER, ConsumerKind.GROUP)
    assert (stored_offsets.OFFSET_CONSUMER, stored_offsets.OFFSET_GROUP) == (1, 2)


def test_limits_of_messages_and_frames_are_the_same() -> None:
    assert _native.PAYLOAD_SIZE_MAX == limits.MESSAGE_PAYLOAD_BYTES_MAX == twin_record.PAYLOAD_MAX
    assert _native.USER_HEADERS_SIZE_MAX == limits.USER_HEADERS_BYTES_MAX == twin_record.USER_HEADERS_MAX
    assert _native.RECORD_HEADER_SIZE == twin_record.HEADER_BYTES
    assert _native.INDEX_ENTRY_SIZE == record_format.INDEX_ENTRY.size == twin_record.INDEX_ENTRY.size
    assert named_numbers("FRAME")["CONTROL_MAX"] == limits.CONTROL_PAYLOAD_BYTES_MAX


def test_faults_of_a_scan_are_those_of_the_twin() -> None:
    assert {each.name: int(each) for each in record_format.RecordFault} == {
        each.name: int(each) for each in twin_record.Fault
    }


def test_every_level_that_can_be_set_is_one_of_the_core() -> None:
    assert set(LEVELS) == set(ACK_LEVELS)
    assert sorted(LEVELS.values()) == [0, 1, 2]


def test_results_of_the_core_have_the_fields_that_the_types_say() -> None:
    """Struct sequences: the stub is what mypy believes, the C table is what there is."""
    stub = ast.parse((Path(_native.__file__).parent / "_native.pyi").read_text())
    said = {
        node.name: [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        for node in stub.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
    }
    assert sorted(said) == ["IndexedScan", "PartitionStats", "Scan", "SegmentInfo"]
    for name, fields in said.items():
        kind = getattr(_native, name)
        assert kind.n_sequence_fields == kind.n_fields == len(fields)
        made = kind(range(len(fields)))
        assert [getattr(made, field) for field in fields] == list(range(len(fields)))
