"""Messages of `proto.API`: bytes as the description of Liftbridge's wire gives them (Lb 1.2, 1.7, 3.5)."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sized
from pathlib import Path
from typing import Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from shardd.protocol.liftbridge import api, api_messages

DECLARATIONS: Final = Path(api_messages.__file__).read_text()
SCALARS: Final = {
    FieldDescriptor.TYPE_INT32: ("Int32", int),
    FieldDescriptor.TYPE_INT64: ("Int64", int),
    FieldDescriptor.TYPE_UINT64: ("UInt64", int),
    FieldDescriptor.TYPE_ENUM: ("int", int),
    FieldDescriptor.TYPE_BOOL: ("bool", bool),
    FieldDescriptor.TYPE_STRING: ("str", str),
    FieldDescriptor.TYPE_BYTES: ("bytes", bytes),
}
"""What a declaration says of each type on the wire, and the class of its values."""


def test_the_payload_of_a_published_message() -> None:
    message = api_messages.Message(key=b"k1", value=b"hello", ackInbox="acks.1", correlationId="c-7")
    expected = "12026b31 1a0568656c6c6f 520661636b732e31 5a03632d37"
    assert message.SerializeToString() == bytes.fromhex(expected)


def test_headers_policy_and_a_negative_offset() -> None:
    message = api_messages.Message(value=b"hi", offset=-1, headers={"h": b"1"}, ackPolicy=1)
    expected = "08ffffffffffffffffff01 1a026869 4a060a0168120131 6001"
    assert message.SerializeToString() == bytes.fromhex(expected)


def test_an_ack_with_an_error() -> None:
    encoded = bytes.fromhex(
        "0a066f7264657273 12096f72646572732e696e 1a096f72646572732e696e 2a0661636b732e31 3203632d38"
        "4095 9a97ece39fe7cb17 48b5a79dece39fe7cb17 5002"
    )
    ack = api_messages.Ack.FromString(encoded)
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("orders", "orders.in", "orders.in")
    assert (ack.offset, ack.ackInbox, ack.correlationId) == (0, "acks.1", "c-8")
    assert (ack.receptionTimestamp, ack.commitTimestamp) == (1_700_000_000_123_456_789, 1_700_000_000_123_556_789)
    assert ack.ackError == 2
    assert ack.SerializeToString() == encoded


def test_the_value_of_a_cursor() -> None:
    cursor = api_messages.SetCursorRequest(stream="as", cursorId="c1", offset=42)
    assert cursor.SerializeToString() == bytes.fromhex("0a026173 1a026331 202a")


def test_an_absent_setting_is_not_nought() -> None:
    request = api_messages.CreateStreamRequest
    absent, nought = request(name="s"), request(name="s")
    nought.retentionMaxAge.value = 0
    nought.retentionMaxAge.SetInParent()
    assert not request.FromString(absent.SerializeToString()).HasField("retentionMaxAge")
    assert nought.SerializeToString() == bytes.fromhex("120173 4200")
    assert request.FromString(nought.SerializeToString()).HasField("retentionMaxAge")


def test_partitions_are_a_map() -> None:
    stream = api_messages.StreamMetadata(name="s")
    stream.partitions[2].leader = "b"
    assert stream.SerializeToString() == bytes.fromhex("0a0173 22 07 0802 1203 120162")


def test_an_undefined_policy_is_kept() -> None:
    assert api_messages.PublishRequest.FromString(bytes.fromhex("4007")).ackPolicy == 7


@pytest.mark.parametrize("method", api.METHODS)
def test_every_method_has_its_messages(method: str) -> None:
    service = api_messages.POOL.FindServiceByName(api.SERVICE)
    described = service.FindMethodByName(method)
    assert described.input_type.name == api.request_of(method) and described.output_type.name == api.response_of(method)
    assert api_messages.message_class(api.request_of(method))() == api_messages.message_class(
        api.request_of(method)
    ).FromString(b"")
    with pytest.raises(DecodeError):
        api_messages.message_class(api.request_of(method)).FromString(b"\xff\xff\xff")


def test_sixteen_methods_and_no_number_twice() -> None:
    assert len(set(api.METHODS)) == 16
    for message in api_messages.POOL.FindFileByName(api_messages.FILE).message_types_by_name.values():
        fields = message.fields
        assert len({field.number for field in fields}) == len(fields)
        assert [field.number for field in fields] == list(range(1, len(fields) + 1)), message.name


def annotation_of(field: FieldDescriptor) -> str:
    """What a declaration has to say of a field."""
    message = field.message_type
    if message is None:
        name, _ = SCALARS[field.type]
        return f"Repeated[{name}]" if field.is_repeated else name
    if message.GetOptions().map_entry:
        value = message.fields_by_name["value"].message_type
        return "Headers" if value is None else f"Numbered[{value.name}]"
    return f"Messages[{message.name}]" if field.is_repeated else message.name


def wrong_declarations(source: str) -> list[str]:
    """Messages whose fields protobuf has in another way than mypy reads them."""
    wrong = []
    for declared in ast.parse(source).body:
        if not isinstance(declared, ast.ClassDef):
            continue
        fields = {ast.unparse(row.target): row for row in declared.body if isinstance(row, ast.AnnAssign)}
        described = api_messages.POOL.FindMessageTypeByName(f"proto.{declared.name}").fields_by_name
        annotations = {name: ast.unparse(row.annotation) for name, row in fields.items()}
        if annotations != {name: annotation_of(field) for name, field in described.items()}:
            wrong.append(declared.name)
    return wrong


def test_declared_fields_are_those_of_protobuf() -> None:
    assert (
        DECLARATIONS.count("(ApiMessage):")
        == len(api_messages.POOL.FindFileByName(api_messages.FILE).message_types_by_name)
        > 40
    )
    assert wrong_declarations(DECLARATIONS) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("    ackError: int", "    ackErorr: int", "Ack"),
        ("    groupEpoch: UInt64", "    groupEpoch: Int64", "Consumer"),
        ("    ack: Ack = field(1)\n    asyncError", "    ack: Broker = field(1)\n    asyncError", "PublishResponse"),
        ("    partitions: Numbered[", "    partitions: Messages[", "StreamMetadata"),
        ("    expired: bool = field(3)\n", "", "LeaveConsumerGroupOp"),
    ],
)
def test_wrong_declarations_are_found(right: str, wrong: str, message: str) -> None:
    assert DECLARATIONS.count(right) == 1
    assert wrong_declarations(DECLARATIONS.replace(right, wrong)) == [message]


def test_values_have_the_declared_classes() -> None:
    for described in api_messages.POOL.FindFileByName(api_messages.FILE).message_types_by_name.values():
        message = api_messages.message_class(described.name)()
        for field in described.fields:
            value = getattr(message, field.name)
            if field.is_repeated:
                assert isinstance(value, Sized) and len(value) == 0
            elif field.message_type is not None:
                assert type(value) is api_messages.message_class(field.message_type.name)
            else:
                assert type(value) is SCALARS[field.type][1]


def test_misspelled_fields_are_errors() -> None:
    """mypy sees them, too: it fails where an ignored error is not there."""
    ack = api_messages.Ack(offset=3)
    with pytest.raises(AttributeError):
        _ = ack.ofset  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        ack.ofset = 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError):
        api_messages.Ack(ofset=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        api_messages.Ack(offset="3")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        _ = api_messages.StreamMetadata().partitions[0].leeder  # type: ignore[attr-defined]


def test_the_description_for_reflection_has_its_bytes() -> None:
    """A change is one of the wire, and has to be one that Liftbridge has made."""
    known = "ef569d535ac119260aacede4997330406338e3a23b07e7be02b23b6ced9ec18f"
    assert hashlib.sha256(api_messages.DESCRIPTION).hexdigest() == known
