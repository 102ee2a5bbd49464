"""Which streams may be made (Lb 1.3): texts and order of checks are those of Liftbridge."""

from __future__ import annotations

from typing import Any

import pytest

from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.creation import CreationError, NewStream, is_subject, new_stream


def request(**fields: Any) -> Any:
    settings = {name: value for name, value in fields.items() if name not in _PLAIN}
    said = api_messages.CreateStreamRequest(
        **{"name": "s", "subject": "a.b"} | {name: value for name, value in fields.items() if name in _PLAIN}
    )
    for name, value in settings.items():
        getattr(said, name).SetInParent()
        getattr(said, name).value = value
    return api_messages.CreateStreamRequest.FromString(said.SerializeToString())


_PLAIN = {"name", "subject", "group", "replicationFactor", "partitions"}


def test_defaults() -> None:
    assert new_stream(request()) == NewStream("s", "a.b", "", 1, {})
    assert new_stream(request(replicationFactor=-1, partitions=3, group="g")).partitions == 3


def test_settings_that_are_nought_are_set() -> None:
    asked = request(retentionMaxAge=0, compactEnabled=False, minIsr=2, segmentMaxBytes=1 << 40)
    assert new_stream(asked).settings == {
        "retentionMaxAge": 0,
        "segmentMaxBytes": 1 << 40,
        "compactEnabled": False,
        "minIsr": 2,
    }


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": "", "subject": ""}, "Name cannot be empty"),
        ({"name": "__cursors", "subject": "a b"}, "Subject is invalid"),
        ({"name": "__cursors", "replicationFactor": 5}, "Stream is reserved"),
        ({"name": "__activity"}, "Stream is reserved"),
        ({"replicationFactor": -2}, "Invalid replicationFactor -2"),
        ({"replicationFactor": 2}, "Invalid replicationFactor 2, cluster size 1"),
        ({"partitions": -1}, "Invalid partitions -1"),
        ({"partitions": 1001}, "Invalid partitions 1001"),
        ({"name": "a b"}, "spaces"),
        ({"name": "a\x00"}, "control characters"),
        ({"name": ".."}, "dot"),
        ({"name": "a."}, "dot"),
        ({"name": "é" * 128}, "255 bytes"),
        ({"subject": "g.>", "partitions": 2}, "Subject is invalid"),
        ({"subject": "é" * 513}, "Subject has more than 1024 bytes"),
        ({"subject": ".".join(["a"] * 16 + ["*"])}, "Subject has wildcards and more than 16 tokens"),
        ({"cleanerInterval": -1}, "cleanerInterval is negative"),
        ({"segmentMaxBytes": -1}, "segmentMaxBytes is negative"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(CreationError, match=text):
        new_stream(request(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "__other"},
        {"name": "a.b/c*"},
        {"name": "é" * 127},
        {"subject": "g.>"},
        {"subject": "w.*.x", "partitions": 1000},
        {"retentionMaxAge": -1, "minIsr": -1, "autoPauseTime": -1, "segmentMaxAge": -1, "compactMaxGoroutines": -1},
    ],
)
def test_what_is_taken(fields: dict[str, Any]) -> None:
    assert new_stream(request(**fields)).name == fields.get("name", "s")


def test_subjects() -> None:
    assert all(is_subject(text) for text in ("a", "a.b", "*", ">", "a.*.>", "é"))
    assert not any(is_subject(text) for text in ("", ".", "a.", ".a", "a..b", "a b", "a\t", "a\r\n", "a\x00", ">.a"))
