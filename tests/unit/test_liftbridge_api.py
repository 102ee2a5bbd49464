"""Messages of `proto.API`: bytes as the description of Liftbridge's wire gives them (Lb 1.2, 1.7, 3.5)."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from shardd.protocol.liftbridge import api


def test_the_payload_of_a_published_message() -> None:
    message = api.message_class("Message")(key=b"k1", value=b"hello", ackInbox="acks.1", correlationId="c-7")
    expected = "12026b31 1a0568656c6c6f 520661636b732e31 5a03632d37"
    assert message.SerializeToString() == bytes.fromhex(expected)


def test_headers_policy_and_a_negative_offset() -> None:
    message = api.message_class("Message")(value=b"hi", offset=-1, headers={"h": b"1"}, ackPolicy=1)
    expected = "08ffffffffffffffffff01 1a026869 4a060a0168120131 6001"
    assert message.SerializeToString() == bytes.fromhex(expected)


def test_an_ack_with_an_error() -> None:
    encoded = bytes.fromhex(
        "0a066f7264657273 12096f72646572732e696e 1a096f72646572732e696e 2a0661636b732e31 3203632d38"
        "4095 9a97ece39fe7cb17 48b5a79dece39fe7cb17 5002"
    )
    ack = api.message_class("Ack").FromString(encoded)
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("orders", "orders.in", "orders.in")
    assert (ack.offset, ack.ackInbox, ack.correlationId) == (0, "acks.1", "c-8")
    assert (ack.receptionTimestamp, ack.commitTimestamp) == (1_700_000_000_123_456_789, 1_700_000_000_123_556_789)
    assert ack.ackError == 2
    assert ack.SerializeToString() == encoded


def test_the_value_of_a_cursor() -> None:
    cursor = api.message_class("SetCursorRequest")(stream="as", cursorId="c1", offset=42)
    assert cursor.SerializeToString() == bytes.fromhex("0a026173 1a026331 202a")


def test_an_absent_setting_is_not_nought() -> None:
    request = api.message_class("CreateStreamRequest")
    absent, nought = request(name="s"), request(name="s")
    nought.retentionMaxAge.value = 0
    nought.retentionMaxAge.SetInParent()
    assert not request.FromString(absent.SerializeToString()).HasField("retentionMaxAge")
    assert nought.SerializeToString() == bytes.fromhex("120173 4200")
    assert request.FromString(nought.SerializeToString()).HasField("retentionMaxAge")


def test_partitions_are_a_map() -> None:
    stream = api.message_class("StreamMetadata")(name="s")
    stream.partitions[2].leader = "b"
    assert stream.SerializeToString() == bytes.fromhex("0a0173 22 07 0802 1203 120162")


def test_an_undefined_policy_is_kept() -> None:
    assert api.message_class("PublishRequest").FromString(bytes.fromhex("4007")).ackPolicy == 7


@pytest.mark.parametrize("method", api.METHODS)
def test_every_method_has_its_messages(method: str) -> None:
    service = api.POOL.FindServiceByName(api.SERVICE)
    described = service.FindMethodByName(method)
    assert described.input_type.name == api.request_of(method) and described.output_type.name == api.response_of(method)
    assert api.message_class(api.request_of(method))() == api.message_class(api.request_of(method)).FromString(b"")
    with pytest.raises(DecodeError):
        api.message_class(api.request_of(method)).FromString(b"\xff\xff\xff")


def test_sixteen_methods_and_no_number_twice() -> None:
    assert len(set(api.METHODS)) == 16
    for name in api.MESSAGES:
        fields = api.POOL.FindMessageTypeByName(f"proto.{name}").fields
        assert len({field.number for field in fields}) == len(fields)
        assert [field.number for field in fields] == list(range(1, len(fields) + 1)), name
